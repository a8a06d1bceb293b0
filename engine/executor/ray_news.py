"""RayNews: the thread that asks every actor for news, and by that sees which of them live."""

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.executor.ray_port import Actor, ActorCallError, ActorLostError, RayPort, Reference
from vllm_obs.engine.executor.ray_rank import Whereabouts
from vllm_obs.engine.nodes.clock_offset import ClockOffset, Exchange
from vllm_obs.engine.nodes.node_messages import FromRank, NodeFailed, NodeMessage, RankSaid
from vllm_obs.engine.nodes.node_messages import decode as decode_message

NEWS_SECONDS = 1.0
"""How long an actor waits for something to say."""
SILENCE_SECONDS = 10.0
"""An actor that has not answered for so long is lost: long before a collective or Ray itself would notice."""
TAKE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_JOIN_SECONDS = 5.0
NOWHERE = Whereabouts("", "", 0, "", 0, "")

_logger = logging.getLogger(__name__)


class NewsListener(Protocol):
    """Whom the thread tells. Nothing of it may block."""

    def replied(self, rank: int, body: bytes, offset_ns: int) -> None:
        """A rank answered, whose clock is so far behind ours."""

    def failed(self, cause: str) -> None:
        """A rank or its actor is lost; called once."""

    def overdue(self) -> None:
        """Twice a second."""


@dataclass
class RaySeat:
    """A rank's actor, and what is known of it."""

    rank: int
    title: str
    actor: Actor
    where: Whereabouts = NOWHERE
    said: dict[str, Any] = field(default_factory=dict)
    clock: ClockOffset = field(default_factory=ClockOffset)
    asked_at: int = 0
    seen_at: float = 0.0

    def place(self, where: Whereabouts) -> None:
        """It runs there."""
        self.where, self.seen_at = where, time.monotonic()

    @property
    def named(self) -> str:
        """For people: who it is, and where."""
        return f"{self.title} was lost: its Ray actor on {self.where.hostname} ({self.where.address})"


class RayNews:
    """`failure` is why a rank is lost, and its exit code."""

    def __init__(self, port: RayPort, listener: NewsListener) -> None:
        self.failure: tuple[str, int] | None = None
        self._port = port
        self._listener = listener
        self._asked: dict[Reference, RaySeat] = {}
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray news", daemon=True)

    def start(self, seats: Sequence[RaySeat]) -> None:
        """Begin to ask."""
        for seat in seats:
            self._ask(seat)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def require_life(self) -> None:
        """ConfigError or StartupError once a rank is lost."""
        if self.failure is not None:
            cause, exit_code = self.failure
            raise ConfigError(cause) if exit_code == ConfigError.exit_code else StartupError(cause)

    def _run(self) -> None:
        try:
            while not self._is_stopping.is_set() and self.failure is None:
                self._look()
        except Exception as error:
            if not self._is_stopping.is_set():
                _logger.exception("nobody asks the ranks for news any more")
                self._lose(f"asking the ranks for news failed: {type(error).__name__}: {error}")

    def _look(self) -> None:
        for reference in self._port.first_done(list(self._asked), _LOOK_SECONDS):
            self._take(self._asked.pop(reference), reference)
        now = time.monotonic()
        for seat in self._asked.values():
            if now - seat.seen_at > SILENCE_SECONDS:
                self._lose(f"{seat.named} gave no sign of life for {SILENCE_SECONDS:g} s")
        self._listener.overdue()

    def _ask(self, seat: RaySeat) -> None:
        seat.asked_at = time.monotonic_ns()
        self._asked[self._port.call(seat.actor, "news", NEWS_SECONDS)] = seat

    def _take(self, seat: RaySeat, reference: Reference) -> None:
        try:
            received_at, messages, answered_at = self._port.result(reference, TAKE_SECONDS)
        except (ActorLostError, TimeoutError) as error:
            self._lose(f"{seat.named} is gone: {error}")
            return
        except ActorCallError as error:
            self._lose(f"{seat.named} failed: {error}")
            return
        seat.seen_at = time.monotonic()
        seat.clock.add(Exchange(seat.asked_at, received_at, answered_at, time.monotonic_ns()))
        self._ask(seat)
        for frames in messages:
            with contextlib.suppress(WireError):
                self._hear(seat, *decode_message(frames))

    def _hear(self, seat: RaySeat, message: NodeMessage, body: bytes) -> None:
        if isinstance(message, FromRank):
            self._listener.replied(seat.rank, body, -seat.clock.offset_ns)
        elif isinstance(message, RankSaid):
            seat.said[message.kind] = message.payload
        elif isinstance(message, NodeFailed):
            self._lose(f"{message.cause} (on {seat.where.hostname}, {seat.where.address})", message.exit_code)

    def _lose(self, cause: str, exit_code: int = StartupError.exit_code) -> None:
        if self.failure is None:
            self.failure = (cause, exit_code)
            self._listener.failed(cause)
