"""What a client of an engine needs of its link to it; EngineLink is one, for an engine of the client's own."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineFacts


class Link(Protocol):
    """An engine's life, and the two sockets that reach it."""

    @property
    def route(self) -> Route:
        """Between which client and which life of which engine."""

    @property
    def outputs(self) -> "zmq.Socket[bytes]":
        """Where outputs arrive."""

    @property
    def num_dropped(self) -> Counter[str]:
        """Messages from the engine that were not taken, by reason."""

    @property
    def exit_cause(self) -> str | None:
        """Why the engine ended, on purpose or not; None while it runs."""

    @property
    def dead_cause(self) -> str | None:
        """The same, but None when it was stopped on purpose."""

    @property
    def has_left_nothing(self) -> bool:
        """Whether the engine and every process it had have ended."""

    def try_ready(self) -> EngineFacts | None:
        """Its facts once it can be sent to, None before. ConfigError or StartupError when it ended."""

    def late_error(self, timeout_seconds: float) -> StartupError:
        """What is raised by who has waited long enough."""

    def on_exit(self, callback: Callable[[str], None], /) -> None:
        """Call `callback(cause)` once when it ends, from any thread (or now, if it has)."""

    def send(self, frames: Sequence[Buffer], flags: int = 0) -> None:
        """Send a message; zmq.Again when its queue is full, EngineDeadError when it is gone."""

    def receive(self, frames: Sequence[Buffer]) -> EngineCoreOutputs | None:
        """The outputs in these frames; None, and counted, for what is broken or not of its life."""

    def drop(self, reason: DropReason) -> None:
        """Count a message that was not taken."""

    def record_exit(self) -> None:
        """Its process has ended."""

    def ask_to_stop(self) -> None:
        """Order it to end."""

    def close(self, timeout_seconds: float) -> None:
        """End it within that time, and take the sockets away. Idempotent."""

    def successor(self) -> "Link":
        """Start the engine that takes its place."""
