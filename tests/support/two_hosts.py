"""Two hosts on one machine: network namespaces with a cable between them, and processes in them."""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from serving import Server

KEY = "a secret that only tests share"
PORT = 8000


def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"vo-probe-{os.getpid()}"
    cable = ["link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]
    steps = (["netns", "add", name], ["-n", name, *cable])
    try:
        for step in steps:
            done = subprocess.run(["ip", *step], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"network namespaces with a cable between them are not allowed here: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return ""


class TwoHosts:
    """Namespaces a and b, 10.79.N.1 and 10.79.N.2, with a veth pair between them."""

    def __init__(self) -> None:
        tag = f"{os.getpid() % 100_000}"
        self.names = [f"vo-a-{tag}", f"vo-b-{tag}"]
        self._links = [f"voa{tag}", f"vob{tag}"]
        subnet = 1 + os.getpid() % 250
        self.addresses = [f"10.79.{subnet}.1", f"10.79.{subnet}.2"]
        self.bases = [Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp")) for _ in self.names]

    def make(self) -> None:
        """Set all up."""
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", self._links[0], "type", "veth", "peer", "name", self._links[1])
        for name, link, address in zip(self.names, self._links, self.addresses, strict=True):
            _ip("link", "set", link, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            for device in (link, "lo"):
                _ip("-n", name, "link", "set", device, "up")

    def unplug(self) -> None:
        """Nothing gets from one host to the other any more, and nobody is told."""
        _ip("-n", self.names[1], "link", "set", self._links[1], "down")

    def plug(self) -> None:
        """The cable is back."""
        _ip("-n", self.names[1], "link", "set", self._links[1], "up")

    def remove(self) -> None:
        """Take all away."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        for base in self.bases:
            shutil.rmtree(base, ignore_errors=True)

    def environment(self, host: int, env: dict[str, str] | None = None) -> dict[str, str]:
        """What a process of that host has in its environment."""
        return {
            **os.environ,
            "VLLM_OBS_CLUSTER_KEY": KEY,
            "VLLM_OBS_RUN_DIR": str(self.bases[host]),
            **(env or {}),
        }

    def flags(self, host: int, node_timeout: float = 60.0) -> list[str]:
        """What says to `vllm-obs serve` which host it is on."""
        common = ["--nnodes", "2", "--node-rank", str(host), "--master-addr", self.addresses[0]]
        headless = ["--headless"] if host else []
        return [*common, "--master-port", "29501", "--node-timeout", str(node_timeout), *headless]


class HostProcess(Server):
    """`vllm-obs serve` on one of the hosts; host 0 is asked by a process beside it (see `request`).

    One that `is_alone` is not told of the other host.
    """

    def __init__(
        self, hosts: TwoHosts, host: int, *args: str, env: dict[str, str] | None = None, is_alone: bool = False
    ) -> None:
        self.port = PORT
        self.log = Path(tempfile.mkstemp(prefix=f"vllm-obs-host{host}-", suffix=".log")[1])
        self._namespace = hosts.names[host]
        command = ["vllm_obs", "serve", *(["--port", str(PORT)] if host == 0 else []), *args]
        command += [] if is_alone else hosts.flags(host)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=hosts.environment(host, env),
            )
        self.family: list[psutil.Process] = []

    def connect(self, seconds: float = 120.0) -> http.client.HTTPConnection:
        """A connection whose socket was made in the host's namespace."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with inside(self._namespace):
            connection.connect()
        return connection

    def note_family(self) -> None:
        """Remember the processes that there are now."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def wait_said(self, words: str, seconds: float = 60.0) -> None:
        """Return when the log holds these words."""
        deadline = time.monotonic() + seconds
        while words not in self.log.read_text():
            assert time.monotonic() < deadline, (
                f"{words!r} was not said within {seconds} s:\n{self.log.read_text()}"
            )
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the process itself: `ip netns exec` has become it."""
        self.process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread's new sockets are in that namespace."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(other, 0):
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        libc.setns(own, 0)
        os.close(own)
        os.close(other)


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Both hosts, for the length of a `with` block."""
    hosts = TwoHosts()
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def _ip(*words: str) -> None:
    done: Any = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
