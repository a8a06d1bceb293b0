"""A Ray cluster of one host, for the length of a test."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from serving import free_port

ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
START_SECONDS = 90.0


class RayCluster:
    """`ray start --head` in a process group of its own; `address` is for RAY_ADDRESS."""

    def __init__(self, num_cpus: int) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._log = self._place / "start.log"
        ray = Path(sys.executable).parent / "ray"
        flags = [
            f"--port={port}",
            f"--num-cpus={num_cpus}",
            f"--temp-dir={self._place / 't'}",
            "--include-dashboard=false",
        ]
        memory = ["--object-store-memory=100000000", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [ray, "start", "--head", "--block", *flags, *memory],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )

    def wait(self) -> None:
        """Return when it is there."""
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in (text := self._log.read_text()):
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        self._family = psutil.Process(self.process.pid).children(recursive=True)

    def actors(self) -> list[psutil.Process]:
        """The processes of the ranks' actors."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "ray::RayRank" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def stop(self) -> None:
        """End it and whatever it has started."""
        family = [*self._all(), psutil.Process(self.process.pid)] if self.process.poll() is None else []
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)
        shutil.rmtree(self._place, ignore_errors=True)

    def _all(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextlib.contextmanager
def ray_cluster(num_cpus: int = 2) -> Iterator[RayCluster]:
    """A cluster that is ready."""
    cluster = RayCluster(num_cpus)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()
