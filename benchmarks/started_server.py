"""A server that a benchmark starts and ends: `with started(flags, port) as server`."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx

COMMAND = [sys.executable, "-m", "vllm_obs", "serve"]
READY_SECONDS = 120.0
STOP_SECONDS = 60.0
_POLL_SECONDS = 0.01


@contextmanager
def started(
    flags: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server on that port of this host, as soon as it lets requests in. SystemExit when it does not."""
    command = [*COMMAND, "--port", str(port), *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as server:
        try:
            _wait_ready(server, port)
            yield server
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(STOP_SECONDS)


def _wait_ready(server: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client() as client:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                if client.get(f"http://127.0.0.1:{port}/readyz").status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(_POLL_SECONDS)
    raise SystemExit("the server was not ready")
