"""The client of an engine process for the API server's event loop."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_process import READY_POLL_SECONDS, READY_TIMEOUT_SECONDS
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.errors import EngineDeadError, RequestFailedError
from vllm_obs.engine.launch import EngineLink
from vllm_obs.engine.link_interface import Link
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishReason,
    UtilityCall,
    UtilityResult,
)
from vllm_obs.engine.sockets import SEND_TIMEOUT_MS, receive_frames
from vllm_obs.engine.wire import EngineMessage, FrameEncoder
from vllm_obs.telemetry.recorder import NullRecorder, Recorder

UTILITY_TIMEOUT_SECONDS = 60.0
MAX_WAITING_OUTPUTS = 1024
"""Step outputs of an engine held for `get_output`; beyond that the engine's queue fills, not ours."""
_SEND_RETRY_SECONDS = 0.002


Said = tuple["AsyncMPClient", EngineCoreOutputs | None]
"""Who says what; None is its end."""


class AsyncMPClient:
    """An engine process seen from one event loop. Made by `launch`, usable after `ready`.

    Nothing here blocks the loop. When the engine dies, every pending call and all later ones raise
    EngineDeadError with the cause, which is also `dead_cause`.
    """

    facts: EngineFacts

    def __init__(self, link: Link) -> None:
        self._link = link
        self._encoder = FrameEncoder()
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}
        self._num_calls = 0
        self._outputs: asyncio.Queue[Said] = asyncio.Queue()
        self._is_shared = False
        self._num_waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_held = True
        self._has_ended = False

    @classmethod
    def launch(
        cls, config: VllmConfig, recorder: Recorder | None = None, module: str = ENGINE_MODULE
    ) -> "AsyncMPClient":
        """Start the engine process at once; needs no running loop. Call it from the main thread."""
        return cls(EngineLink(config, recorder or NullRecorder(), module))

    def successor(self) -> "AsyncMPClient":
        """The client of an engine that takes this one's place, which is started at once; see `EngineLink`.

        It says all into the same queue where that is shared. Call it from the main thread, after this one's
        `shutdown`. StartupError when it cannot be started.
        """
        made = AsyncMPClient(self._link.successor())
        if self._is_shared:
            made.say_into(self._outputs)
        return made

    def say_into(self, outputs: "asyncio.Queue[Said]") -> None:
        """Put the outputs, and the end, into a queue that several engines share; call this before `ready`.

        Whoever reads it calls `taken` for each, and nobody `get_output`.
        """
        self._outputs, self._is_shared = outputs, True

    async def ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> EngineFacts:
        """The engine's facts once it serves; ConfigError or StartupError with its own cause otherwise.

        May be asked again: who attaches to it and the start of a server both wait for it, in either order.
        """
        if self._loop is not None:
            return self.facts
        deadline = time.monotonic() + timeout_seconds
        while (facts := self._link.try_ready()) is None:
            if time.monotonic() >= deadline:
                raise self._link.late_error(timeout_seconds)
            await asyncio.sleep(READY_POLL_SECONDS)
        self.facts = facts
        self._attach(asyncio.get_running_loop())
        return facts

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._read_on()
        self._link.on_exit(lambda cause: _call_in(loop, self._ended))

    def _read_on(self) -> None:
        if self._loop is not None and not self._has_ended:
            self._is_held = False
            self._loop.add_reader(self._link.outputs.FD, self._take_waiting)
            self._take_waiting()

    def _hold(self) -> None:
        if self._loop is not None and not self._is_held and not self._loop.is_closed():
            self._is_held = True
            self._loop.remove_reader(self._link.outputs.FD)

    @property
    def dead_cause(self) -> str | None:
        """Why the engine ended; None while it lives, and when it was stopped on purpose."""
        return self._link.dead_cause

    @property
    def engine_index(self) -> int:
        """Which of the engines of this run it is."""
        return self._link.route.engine_index

    @property
    def generation(self) -> int:
        """How many engines were in this one's place before it."""
        return self._link.route.generation

    @property
    def num_dropped(self) -> dict[str, int]:
        """Messages from the engine that were not taken, by reason."""
        return dict(self._link.num_dropped)

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence."""
        index, generation = self._link.route.client_index, self._link.route.generation
        await self._send(request._replace(client_index=index, generation=generation))

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason = FinishReason.ABORT) -> None:
        """End sequences, for the reason the OutputProcessor recorded."""
        index, generation = self._link.route.client_index, self._link.route.generation
        await self._send(AbortRequests(index, generation, list(request_ids), int(reason)))

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the EngineCore; RequestFailedError with the engine's own words if it fails.

        Where it does not answer for UTILITY_TIMEOUT_SECONDS the reason is `stalled`.
        """
        self._num_calls += 1
        call_id = self._num_calls
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        index, generation = self._link.route.client_index, self._link.route.generation
        try:
            await self._send(UtilityCall(index, generation, call_id, method, list(args)))
            async with asyncio.timeout(UTILITY_TIMEOUT_SECONDS):
                result = await answer
        except TimeoutError:
            told = f"the engine did not answer {method} within {UTILITY_TIMEOUT_SECONDS:g} s"
            raise RequestFailedError(told, "stalled") from None
        finally:
            del self._calls[call_id]
        if result.error:
            raise RequestFailedError(result.error)
        return result.value

    async def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs. What arrived before the engine died is still handed out first."""
        _, outputs = await self._outputs.get()
        if outputs is None:
            self._outputs.put_nowait((self, None))
            raise self._dead_error()
        self.taken()
        return outputs

    def taken(self) -> None:
        """One of the outputs left the queue; where that makes room, more are read."""
        self._num_waiting -= 1
        if self._is_held and self._num_waiting <= MAX_WAITING_OUTPUTS // 2:
            self._read_on()

    def ask_to_stop(self) -> None:
        """Order the engine to end, without waiting; `shutdown` is still due."""
        self._link.ask_to_stop()

    @property
    def has_stopped(self) -> bool:
        """Whether the engine's process has ended, for whatever reason."""
        return self._link.exit_cause is not None

    @property
    def has_left_nothing(self) -> bool:
        """Whether the workers' processes have ended as well."""
        return self._link.has_left_nothing

    def shutdown(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the engine within that time, then SIGKILL; blocks as long. Idempotent."""
        self._end()
        self._link.close(timeout_seconds)

    async def _send(self, message: EngineMessage) -> None:
        frames = self._encoder.request(message)
        deadline = time.monotonic() + SEND_TIMEOUT_MS / 1e3
        while True:
            try:
                return self._link.send(frames, zmq.DONTWAIT)
            except zmq.Again:
                if time.monotonic() >= deadline:
                    raise RequestFailedError("the engine's queue is full", "under_pressure") from None
                await asyncio.sleep(_SEND_RETRY_SECONDS)

    def _take_waiting(self) -> None:
        """Empty the socket. Its FD wakes the loop again only for what comes after it was seen empty."""
        with contextlib.suppress(zmq.Again):
            while self._num_waiting < MAX_WAITING_OUTPUTS:
                outputs = self._receive()
                if outputs is not None:
                    self._hand_out(outputs)
            self._hold()

    def _hand_out(self, outputs: EngineCoreOutputs) -> None:
        if outputs.utility is not None:
            self._resolve(outputs.utility)
        if outputs.request_ids or outputs.utility is None:
            self._num_waiting += 1
            self._outputs.put_nowait((self, outputs))

    def _receive(self) -> EngineCoreOutputs | None:
        try:
            frames = receive_frames(self._link.outputs, zmq.DONTWAIT)
        except WireError as error:
            self._link.drop(error.reason)
            return None
        return self._link.receive(frames)

    def _resolve(self, result: UtilityResult) -> None:
        call = self._calls.get(result.call_id)
        if call is not None and not call.done():
            call.set_result(result)

    def _ended(self) -> None:
        self._link.record_exit()
        self._end()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._take_waiting()
        self._has_ended = True
        self._hold()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(self._dead_error())
        self._outputs.put_nowait((self, None))

    def _dead_error(self) -> EngineDeadError:
        return EngineDeadError(self.dead_cause or "the engine was shut down")


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
