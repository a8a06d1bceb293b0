"""The client of an engine process for code without an event loop."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_process import READY_POLL_SECONDS, READY_TIMEOUT_SECONDS
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.errors import EngineDeadError, RequestFailedError
from vllm_obs.engine.launch import EngineLink
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishReason,
    UtilityCall,
)
from vllm_obs.engine.sockets import receive_frames
from vllm_obs.engine.wire import EngineMessage, FrameEncoder
from vllm_obs.telemetry.recorder import NullRecorder, Recorder

OUTPUT_TIMEOUT_SECONDS = 300.0
UTILITY_TIMEOUT_SECONDS = 60.0


class SyncMPClient:
    """Starts an engine process, waits until it is ready, and talks to it; every call has a deadline.

    Raises ConfigError or StartupError from the constructor; EngineDeadError from any call once it died.
    """

    def __init__(self, config: VllmConfig, recorder: Recorder | None = None, module: str = ENGINE_MODULE) -> None:
        self._link = EngineLink(config, recorder or NullRecorder(), module)
        self._encoder = FrameEncoder()
        self._waiting: deque[EngineCoreOutputs] = deque()
        self._num_calls = 0
        self._poller = zmq.Poller()
        self._poller.register(self._link.outputs, zmq.POLLIN)
        self._poller.register(self._link.child.exit_fd, zmq.POLLIN)
        try:
            self.facts = self._wait_ready(READY_TIMEOUT_SECONDS)
        except BaseException:
            self.shutdown()
            raise

    def _wait_ready(self, timeout_seconds: float) -> EngineFacts:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if (facts := self._link.try_ready()) is not None:
                return facts
            time.sleep(READY_POLL_SECONDS)
        raise self._link.late_error(timeout_seconds)

    @property
    def dead_cause(self) -> str | None:
        """Why the engine ended; None while it lives, and when it was stopped on purpose."""
        return self._link.dead_cause

    @property
    def num_dropped(self) -> dict[str, int]:
        """Messages from the engine that were not taken, by reason."""
        return dict(self._link.num_dropped)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence."""
        index, generation = self._link.route.client_index, self._link.route.generation
        self._send(request._replace(client_index=index, generation=generation))

    def abort_requests(self, request_ids: Sequence[str], reason: FinishReason = FinishReason.ABORT) -> None:
        """End sequences, for the reason the OutputProcessor recorded."""
        index, generation = self._link.route.client_index, self._link.route.generation
        self._send(AbortRequests(index, generation, list(request_ids), int(reason)))

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the EngineCore; RequestFailedError with the engine's own words if it fails."""
        self._num_calls += 1
        index, generation = self._link.route.client_index, self._link.route.generation
        self._send(UtilityCall(index, generation, self._num_calls, method, list(args)))
        deadline = time.monotonic() + UTILITY_TIMEOUT_SECONDS
        while True:
            outputs = self._receive(deadline)
            if outputs.utility is None:
                self._waiting.append(outputs)
            elif outputs.utility.call_id == self._num_calls:
                if outputs.utility.error:
                    raise RequestFailedError(outputs.utility.error)
                return outputs.utility.value

    def get_output(self, timeout_seconds: float = OUTPUT_TIMEOUT_SECONDS) -> EngineCoreOutputs:
        """The next step's outputs; TimeoutError when none come in that time."""
        if self._waiting:
            return self._waiting.popleft()
        deadline = time.monotonic() + timeout_seconds
        while True:
            outputs = self._receive(deadline)
            if outputs.utility is None:
                return outputs

    def shutdown(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the engine within that time, then SIGKILL. Idempotent."""
        self._link.close(timeout_seconds)

    def _send(self, message: EngineMessage) -> None:
        self._link.send(self._encoder.request(message))

    def _receive(self, deadline: float) -> EngineCoreOutputs:
        while (remaining := deadline - time.monotonic()) > 0:
            ready = dict(self._poller.poll(int(remaining * 1e3) + 1))
            if self._link.outputs in ready:
                outputs = self._link.receive(receive_frames(self._link.outputs))
                if outputs is not None:
                    return outputs
            elif ready:
                self._link.child.wait(1.0)
                raise EngineDeadError(self.dead_cause or "the engine ended")
        raise TimeoutError("the engine sent no output before the deadline")
