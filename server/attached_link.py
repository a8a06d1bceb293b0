"""AttachedLink: an engine's life as an API server sees it that owns none; its launcher tells it what happens."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

import zmq

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason
from vllm_obs.engine.engine_sockets import EngineSockets, Route
from vllm_obs.engine.engine_titles import engine_title
from vllm_obs.engine.errors import EngineDeadError, StartupError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineFacts
from vllm_obs.telemetry.recorder import Recorder


class AttachedLink:
    """Our ends of the two sockets to one life of an engine, as an EngineLink is for the engine's owner."""

    def __init__(self, route: Route, engine_pid: int, run_dir: str, recorder: Recorder) -> None:
        """Listen for that process. ConfigError."""
        self.route = route
        self._cause: str | None = None
        self._lost_at: float | None = None
        self._is_stopped = False
        self._facts: EngineFacts | None = None
        self._exit_callbacks: list[Callable[[str], None]] = []
        self._sockets = EngineSockets(route, run_dir, recorder)
        try:
            self._sockets.listen(engine_pid)
        except BaseException:
            self._sockets.close()
            raise

    def serves(self, facts: EngineFacts) -> None:
        """The launcher tells that the engine is ready."""
        self._facts = facts

    def ended(self, cause: str) -> None:
        """The launcher tells that the engine has ended."""
        if self._cause is not None:
            return
        self._cause = cause
        for callback in self._exit_callbacks:
            callback(cause)

    @property
    def exit_cause(self) -> str | None:
        """Why the engine ended, on purpose or not; None while it runs, as far as is known."""
        if self._cause is None and self._lost_at is not None:
            return self._lost_cause
        return self._cause

    @property
    def _lost_cause(self) -> str:
        return f"{engine_title(self.route.engine_index)} is not connected"

    def give_up_lost(self, timeout_seconds: float) -> str | None:
        """The cause, where it could not be sent to so long ago and nobody has told its end: we give it up."""
        if self._cause is not None or self._lost_at is None or self._is_stopped:
            return None
        if time.monotonic() - self._lost_at < timeout_seconds:
            return None
        self.ended(self._lost_cause)
        return self._lost_cause

    def try_ready(self) -> EngineFacts | None:
        """The engine's facts once it can be sent to, None before. StartupError when it has ended."""
        if self._cause is not None:
            raise StartupError(self._cause)
        if not self._sockets.look() or self._facts is None:
            return None
        self._sockets.take_names_away()
        return self._facts

    def successor(self) -> "AttachedLink":
        """There is none to be started from here."""
        raise StartupError("only the launcher starts engines")

    @property
    def outputs(self) -> "zmq.Socket[bytes]":
        """Where its outputs arrive."""
        return self._sockets.outputs

    @property
    def num_dropped(self) -> Counter[str]:
        """Messages from the engine that were not taken, by reason."""
        return self._sockets.num_dropped

    @property
    def dead_cause(self) -> str | None:
        """Why the engine ended; None while it lives, and once this side is done with it."""
        return None if self._is_stopped else self.exit_cause

    @property
    def has_left_nothing(self) -> bool:
        """What it leaves is the launcher's."""
        return True

    def late_error(self, timeout_seconds: float) -> StartupError:
        """What a client raises that has waited long enough."""
        return StartupError(f"{engine_title(self.route.engine_index)} was not ready within {timeout_seconds:g} s")

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` once when the engine ends (or now, if it has)."""
        if self._cause is not None:
            callback(self._cause)
        else:
            self._exit_callbacks.append(callback)

    def send(self, frames: Sequence[Buffer], flags: int = 0) -> None:
        """Send a message to the engine; zmq.Again when its queue is full, EngineDeadError when it is gone."""
        if self.exit_cause is not None:
            raise EngineDeadError(self.exit_cause)
        try:
            self._sockets.send(frames, flags)
        except EngineDeadError:
            self._lost_at = time.monotonic()  # the launcher is about to tell why
            raise

    def receive(self, frames: Sequence[Buffer]) -> EngineCoreOutputs | None:
        """The outputs in these frames; None, and counted, for what is broken or not of this engine's life."""
        return self._sockets.receive(frames)

    def drop(self, reason: DropReason) -> None:
        """Count a message that was not taken."""
        self._sockets.drop(reason)

    def record_exit(self) -> None:
        """Its owner does."""

    def ask_to_stop(self) -> None:
        """Its owner does; from now on its end is no death."""
        self._is_stopped = self._is_stopped or self._cause is None

    def close(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Take our ends away; the engine goes on, for others. Idempotent."""
        self._is_stopped = self._is_stopped or self._cause is None
        self._sockets.close()
