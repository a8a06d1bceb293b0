"""A Ray cluster of some hosts on this machine, for the length of a test."""

import contextlib
import json
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
from serving import Server, free_port
from two_hosts import TwoHosts

ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
START_SECONDS = 90.0
ACTOR_SECONDS = 15.0
"""Within it a dead actor is noticed, and the last actor gone when its server is."""
HOST_SECONDS = 15.0
"""And a dead host is named."""


def synthetic_over_ray(num_ranks: int) -> list[str]:
    """Flags for an engine of so many actors that runs no model."""
    config = json.dumps({"num_ranks": num_ranks, "base_seconds": 0.02})
    flags = ["--load-format", "synthetic", "--distributed-executor-backend", "ray"]
    return [*flags, "--model-loader-extra-config", config]


def wait_ready_again(server: Server) -> None:
    """Return when a second engine has taken the first one's place."""
    deadline = time.monotonic() + 90.0
    while "(restart 1)" not in server.log.read_text():
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.1)
    server.wait_ready(10.0)


class RayHost:
    """`ray start` in a process group of its own, at an address of its own: loopback's, or `namespace`'s."""

    def __init__(self, place: Path, address: str, num_cpus: int, *flags: str, namespace: str = "") -> None:
        self.address = address
        self._log = place / f"start-{address}.log"
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        ray = Path(sys.executable).parent / "ray"
        size = [f"--num-cpus={num_cpus}", "--object-store-memory=100000000", f"--node-ip-address={address}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*inside, ray, "start", "--block", "--disable-usage-stats", *size, *flags],
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

    def family(self) -> list[psutil.Process]:
        """It and whatever it has started."""
        if self.process.poll() is not None:
            return []
        root = psutil.Process(self.process.pid)
        return [*root.children(recursive=True), root]

    def kill(self) -> None:
        """The host is gone, with all that runs on it, in no time and without a word."""
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """End it and whatever it has started."""
        family = self.family()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)


class RayCluster:
    """So many hosts, each with so many CPUs; `address` is for RAY_ADDRESS. `wired` are the hosts, if any."""

    def __init__(self, num_cpus: int, num_hosts: int, wired: TwoHosts | None = None) -> None:
        self._wired = wired
        self._place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        port = free_port()
        address, namespace = self._next_place(0)
        self.address = f"{address}:{port}"
        head = ["--head", f"--port={port}", f"--temp-dir={self._place / 't'}", "--include-dashboard=false"]
        self.hosts = [RayHost(self._place, address, num_cpus, *head, namespace=namespace)]
        self.environment = {**ENVIRONMENT, "RAY_ADDRESS": self.address}
        self._num_cpus = num_cpus
        self._num_further = num_hosts - 1

    def wait(self) -> None:
        """Return when all hosts are there."""
        self.hosts[0].wait()
        for _ in range(self._num_further):
            self.join()

    def join(self) -> None:
        """Another host takes part."""
        address, namespace = self._next_place(len(self.hosts))
        flag = f"--address={self.address}"
        self.hosts.append(RayHost(self._place, address, self._num_cpus, flag, namespace=namespace))
        self.hosts[-1].wait()

    def _next_place(self, number: int) -> tuple[str, str]:
        """The address and the namespace of a host."""
        if self._wired is not None:
            return self._wired.addresses[number], self._wired.names[number]
        return f"127.0.0.{number + 1}", ""

    def actors(self, kind: str = "RayRank") -> list[psutil.Process]:
        """The processes of the ranks' actors, or of another kind of actors."""
        found = []
        for process in [each for host in self.hosts for each in host.family()]:
            with contextlib.suppress(psutil.Error):
                if f"ray::{kind}" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def wait_no_actors(self) -> None:
        """Return when there is none, of ranks and of what observes them."""
        deadline = time.monotonic() + ACTOR_SECONDS
        while left := [*self.actors(), *self.actors("RayObserver")]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def stop(self) -> None:
        """End all of it."""
        for host in reversed(self.hosts):
            host.stop()
        shutil.rmtree(self._place, ignore_errors=True)


@contextlib.contextmanager
def ray_cluster(num_cpus: int = 2, num_hosts: int = 1, wired: TwoHosts | None = None) -> Iterator[RayCluster]:
    """A cluster that is ready."""
    cluster = RayCluster(num_cpus, num_hosts, wired)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()
