"""RayRank: the actor that runs one rank on whichever host Ray puts it, and relays what is said to it and by it.

What the rank records goes another way (ray_observer.py).
"""

import os
import socket
import time
from importlib import import_module
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import msgpack

import vllm_obs
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.executor.multiproc import WORKER_MODULE
from vllm_obs.engine.nodes.agent_ranks import AgentRanks, Links
from vllm_obs.engine.nodes.agent_session import MAX_COMMANDS
from vllm_obs.engine.nodes.node_messages import NodeFailed, NodeMessage, encode
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.wire import FrameEncoder

MAX_NEWS = 1024
SAY_SECONDS = 10.0
"""How long the rank's words may wait for a place: by then host 0, which asks all the time, is gone or stopped."""


class Whereabouts(NamedTuple):
    """Where an actor runs, with a TCP port that was free there a moment ago; `node_id` is Ray's name for it."""

    address: str
    hostname: str
    pid: int
    version: str
    free_port: int
    node_id: str


class RayRank:
    """Its methods take and give bytes and numbers only: what Ray's transport carries is never one of our objects.

    The rank is a process of its own below the actor's, as everywhere: it ends with the actor's.
    """

    def __init__(self, rank: int, module: str = WORKER_MODULE) -> None:
        self._rank = rank
        self._module = module
        self._commands: Queue[bytes] = Queue(MAX_COMMANDS)
        self._news: Queue[tuple[NodeMessage, Buffer]] = Queue(MAX_NEWS)
        self._encoder = FrameEncoder()
        self._num_commands = 0
        self._ranks: AgentRanks | None = None
        self._unheard = ""
        """Why something that was said is lost."""

    def where(self) -> tuple[Any, ...]:
        """The fields of Whereabouts."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        address, node_id = ray_node()
        return (address, socket.gethostname(), os.getpid(), vllm_obs.__version__, port, node_id)

    def start(self, config: bytes) -> str:
        """Start the rank of this configuration (msgpack), in a run directory of this host, which is returned."""
        self._directory = RunDirectory.create()
        run_dir = str(self._directory.path)
        built: VllmConfig = from_wire(VllmConfig, {**msgpack.unpackb(config), "run_dir": run_dir})
        links = Links(self._commands, self._say, self._fail)
        self._ranks = AgentRanks(built, range(self._rank, self._rank + 1), links, self._module)
        return run_dir

    def command(self, number: int, body: bytes) -> None:
        """The `number`th command for the rank."""
        self._num_commands += 1
        if number != self._num_commands:
            self._fail(f"command {number} came in the place of command {self._num_commands}", 70)
            return
        try:
            self._commands.put_nowait(body)
        except Full:
            self._fail(f"{MAX_COMMANDS} commands wait for a rank that reads none", 70)

    def news(self, wait_seconds: float) -> tuple[int, list[list[bytes]], int]:
        """(received at, what the rank said meanwhile, answered at); waits for something to say for that long."""
        received_at = time.monotonic_ns()
        messages = self._wait_news(wait_seconds)
        frames = [[bytes(frame) for frame in encode(self._encoder, *message)] for message in messages]
        return received_at, frames, time.monotonic_ns()

    def stop(self) -> None:
        """End the rank. Idempotent."""
        if self._ranks is not None:
            self._ranks.stop()
            self._directory.close()

    def _wait_news(self, wait_seconds: float) -> list[tuple[NodeMessage, Buffer]]:
        messages: list[tuple[NodeMessage, Buffer]] = []
        try:
            messages.append(self._news.get(timeout=wait_seconds))
            while True:
                messages.append(self._news.get_nowait())
        except Empty:
            pass
        if self._unheard:
            messages.append((NodeFailed(self._unheard, StartupError.exit_code), b""))
        return messages

    def _say(self, message: NodeMessage, body: Buffer = b"") -> None:
        """From any thread; never raises. Once something was lost, nothing that comes later can be trusted."""
        if self._unheard:
            return
        try:
            self._news.put((message, body), timeout=SAY_SECONDS)
        except Full:
            self._unheard = f"nobody asked rank {self._rank} for its {MAX_NEWS} messages in {SAY_SECONDS:g} s"

    def _fail(self, cause: str, exit_code: int = StartupError.exit_code) -> None:
        self._say(NodeFailed(cause, exit_code))


def ray_node() -> tuple[str, str]:
    """The address and the id by which Ray knows the host of the actor that this is called in."""
    ray = import_module("ray")
    return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())
