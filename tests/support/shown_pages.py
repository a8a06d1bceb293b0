"""The dashboard as a process over a server, as a user starts it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ends_with_pytest import ends_with_pytest
from serving import free_port

START_SECONDS = 60.0
END_SECONDS = 10.0


@contextlib.contextmanager
def dashboard(*flags: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """`vllm-obs dashboard` with these flags; its address without a slash at the end. It must end in order."""
    port = free_port()
    log = Path(tempfile.mkstemp(prefix="vllm-obs-pages-", suffix=".log")[1])
    with log.open("wb") as output:
        process = ends_with_pytest(
            subprocess.Popen(
                [sys.executable, "-m", "vllm_obs", "dashboard", "--port", str(port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
            )
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        log.unlink()


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, f"ended with {process.returncode}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no answer within {START_SECONDS:g} s:\n{log.read_text()}"
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=2).read()
            return
        time.sleep(0.1)
