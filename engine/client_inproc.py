"""The engine in this very process: no child, no socket; a step runs when its output is asked for."""

from collections import deque
from collections.abc import Sequence
from threading import Event
from typing import Any

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_titles import engine_title
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm_obs.engine.recording import make_recorder
from vllm_obs.telemetry.recorder import ProcessRecorder

GRAMMAR_WAIT_SECONDS = 0.1


class InprocClient:
    """An EngineCore behind the interface of a client. Loads torch, and the model, when constructed."""

    dead_cause: str | None = None

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder | None = None) -> None:
        from vllm_obs.engine.process import make_core

        self._generation = config.generation
        self._failures: deque[str] = deque(maxlen=1)
        title = engine_title(config.engine_index)
        self._core = make_core(config, recorder or make_recorder(config, title), self._failures.append)
        self._grammar_ready = Event()
        self._core.on_grammar(self._grammar_ready.set)
        self.facts = self._core.facts

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence."""
        self._core.add_request(request._replace(client_index=0, generation=self._generation))

    def abort_requests(self, request_ids: Sequence[str], reason: FinishReason = FinishReason.ABORT) -> None:
        """End sequences, for the reason the OutputProcessor recorded."""
        self._core.abort_requests(AbortRequests(0, self._generation, list(request_ids), int(reason)))

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the EngineCore with plain arguments."""
        return self._core.call_utility(method, list(args))

    def get_output(self) -> EngineCoreOutputs | None:
        """Run one step; what it says, or None when there was nothing to do or to say."""
        if not self._core.has_work():
            if self._core.scheduler.awaits_grammar:
                self._grammar_ready.wait(GRAMMAR_WAIT_SECONDS)
                self._grammar_ready.clear()
            return None
        return self._core.step().get(0)

    def shutdown(self) -> None:
        """End the executor."""
        self._core.shutdown()
