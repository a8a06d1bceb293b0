"""The API server's end of an engine, played by hand: raw frames in, decoded outputs out."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import zmq
from fake_executor import make_request, tiny_config

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.launch import EngineLink
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, EngineFacts, FinishReason, UtilityCall
from vllm_obs.engine.sockets import receive_frames
from vllm_obs.engine.wire import EngineMessage, FrameEncoder
from vllm_obs.telemetry.recorder import MemoryRecorder

START_SECONDS = 60.0
GENERATION = 3
FAKE_ENGINE = "fake_engine_process"


class EnginePeer:
    """Starts an engine over the fake executor (or another), and sends it whatever a test wants it to get.

    `meanwhile` is called with the link while the engine starts.
    """

    def __init__(
        self,
        meanwhile: Callable[[EngineLink], None] = lambda link: None,
        config: VllmConfig | None = None,
        module: str = FAKE_ENGINE,
    ) -> None:
        self.recorder = MemoryRecorder()
        self.link = EngineLink(replace(config or tiny_config(), generation=GENERATION), self.recorder, module)
        self.encoder = FrameEncoder()
        try:
            meanwhile(self.link)
            self.facts = self._wait_ready()
        except BaseException:
            self.close()
            raise
        self._num_calls = 0

    def _wait_ready(self) -> EngineFacts:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if (facts := self.link.try_ready()) is not None:
                return facts
            time.sleep(0.01)
        raise AssertionError(f"not ready within {START_SECONDS} s")

    def send(self, message: EngineMessage) -> None:
        self.link.send(self.encoder.request(message))

    def send_frames(self, frames: Sequence[Any]) -> None:
        self.link.send(frames)

    def add(self, request_id: str, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 4, **fields: Any) -> None:
        self.send(make_request(request_id, list(prompt), max_tokens, **{"generation": GENERATION, **fields}))

    def abort(self, *request_ids: str) -> None:
        self.send(AbortRequests(0, GENERATION, list(request_ids), int(FinishReason.ABORT)))

    def outputs(self, seconds: float = 20.0) -> EngineCoreOutputs:
        """The next outputs; EngineDeadError when the engine ended, AssertionError when none come in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.link.outputs.poll(50, zmq.POLLIN):
                outputs = self.link.receive(receive_frames(self.link.outputs))
                if outputs is not None:
                    return outputs
            elif self.link.child.exit_cause:
                raise EngineDeadError(self.link.child.exit_cause)
        raise AssertionError(f"no outputs within {seconds} s")

    def ping(self) -> list[EngineCoreOutputs]:
        """What the engine said before it answered a ping: all messages sent earlier have been handled then."""
        return self._call("ping")[1]

    def dropped_frames(self) -> Counter[str]:
        """How many frames the engine recorded as dropped, by reason."""
        return Counter(self._call("dropped_frames")[0])

    def pause(self) -> None:
        """Let nobody run who does not run yet; what runs is ended."""
        self._call("pause_scheduler")

    def resume(self) -> None:
        """Let everybody run again."""
        self._call("resume_scheduler")

    def _call(self, method: str) -> tuple[Any, list[EngineCoreOutputs]]:
        self._num_calls += 1
        self.send(UtilityCall(0, GENERATION, self._num_calls, method, []))
        before: list[EngineCoreOutputs] = []
        while True:
            outputs = self.outputs()
            if outputs.utility is not None and outputs.utility.call_id == self._num_calls:
                assert outputs.utility.error == ""
                return outputs.utility.value, before
            before.append(outputs)

    def run(
        self, request_ids: set[str], ignoring: frozenset[str] = frozenset()
    ) -> dict[str, tuple[list[int], FinishReason]]:
        """Tokens and ending of each of the requests, once all have ended; rows of `ignoring` are skipped."""
        tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
        endings: dict[str, FinishReason] = {}
        while endings.keys() != request_ids:
            outputs = self.outputs()
            token_ids = iter(outputs.new_token_ids)
            rows = [list(islice(token_ids, number)) for number in outputs.num_new_tokens]
            for request_id, row, reason in zip(outputs.request_ids, rows, outputs.finish_reasons, strict=True):
                if request_id in ignoring:
                    continue
                tokens[request_id] += row
                if reason >= 0:
                    assert request_id not in endings, "one ending"
                    endings[request_id] = FinishReason(reason)
        return {request_id: (tokens[request_id], endings[request_id]) for request_id in request_ids}

    def serve(self, request_id: str) -> None:
        """Add a request and see it end."""
        self.add(request_id)
        self.run({request_id})

    def close(self) -> None:
        self.link.close()
