"""The synchronous front of the engine: add requests, then step until they are finished."""

import random
import time
from collections.abc import Callable, Iterable

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.client_interface import EngineClient
from vllm_obs.engine.frontend.input_processor import InputProcessor, Prompt, make_limits, make_sequences
from vllm_obs.engine.frontend.open_sequence import AT_THE_END, SequenceRequest
from vllm_obs.engine.frontend.output_processor import OutputProcessor
from vllm_obs.engine.frontend.outputs import RequestOutput
from vllm_obs.engine.frontend.request_assembler import RequestAssembler
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import ProcessRecorder


class LLMEngine:
    """A thin facade over one client, by default an engine in this process (which loads torch and the model).

    max_tokens is cut to what fits in the context. Seeds that requests leave open are drawn from the
    configuration's seed, so that a program run again gives the same.
    """

    def __init__(
        self,
        config: VllmConfig,
        client: EngineClient | None = None,
        tokenizer: Tokenizer | None = None,
        recorder: ProcessRecorder | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer or load_tokenizer(config.model)
        self.recorder = recorder or make_recorder(config, "LLM")
        self._client = client or _inproc_client(config, self.recorder)
        facts = self._client.facts
        self.max_model_len = min(config.model.max_model_len, facts.max_model_len)
        """The most tokens that a prompt and its answer may have together."""
        limits = make_limits(config, self.tokenizer, facts, cap_max_tokens=True)
        self._inputs = InputProcessor(self.tokenizer, limits, facts.kv_cache_size_tokens)
        self._outputs = OutputProcessor(self.tokenizer, self.recorder)
        self._requests: dict[str, tuple[RequestAssembler, list[str]]] = {}
        self._draw_seed = _seed_source(config.model.seed)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int = 0, stream: bool = True
    ) -> None:
        """Queue a prompt under an id of the caller's. RequestError when it can never succeed or the id is in use.

        With `stream` False `step` returns it only when it is finished.
        """
        if request_id in self._requests:
            raise RequestError(f"The request id {request_id[:64]} is in use.", "request_id")
        now = time.monotonic_ns()
        arrival = Arrival(
            external_id=request_id,
            priority=priority,
            is_streamed=stream,
            model=self.config.model.served_model_names[0],
            received_at=now,
            parsed_at=now,
            rendered_at=now,
            num_sequences=params.n,
        )
        prepared = self._inputs.prepare(prompt, params, arrival)
        tokenized_at = time.monotonic_ns()
        sequences = make_sequences(prepared, params, arrival, self._draw_seed)
        text = prompt if isinstance(prompt, str) else None
        output = RequestOutput(request_id, text, prepared.token_ids, [])
        assembler = RequestAssembler(output, params.n, self.tokenizer)
        self._requests[request_id] = assembler, [sequence.request_id for sequence in sequences]
        interval = 1 if stream else AT_THE_END
        for index, sequence in enumerate(sequences):
            request = SequenceRequest(
                sequence.request_id, index, prepared.token_ids, params, assembler.add, interval, tokenized_at
            )
            self._outputs.register(request)
            self.recorder.record(arrival.submitted(sequence, tokenized_at))
            self._client.add_request(sequence)

    def abort_request(self, request_ids: Iterable[str]) -> None:
        """Abort requests by the caller's ids; unknown ones are ignored."""
        for request_id in request_ids:
            if request_id in self._requests:
                _, ids = self._requests.pop(request_id)
                self._tell_core(self._outputs.end(ids, FinishReason.ABORT), FinishReason.ABORT)

    def has_unfinished_requests(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._requests)

    def step(self) -> list[RequestOutput]:
        """Run one step; the requests that changed, each with all its text so far.

        A request that the engine failed raises RequestFailedError; what the others have comes with the next step.
        """
        outputs = self._client.get_output()
        if outputs is not None:
            aborts = self._outputs.process(outputs)
            self._tell_core(aborts.stopped, FinishReason.STOP)
            self._tell_core(aborts.failed, FinishReason.ERROR)
        changed = [assembler for assembler, _ in self._requests.values() if assembler.changed]
        for assembler in changed:
            if assembler.failure is not None:
                self.abort_request([assembler.output.request_id])
                raise assembler.failure
        for assembler in changed:
            assembler.changed = False
            if assembler.output.finished:
                del self._requests[assembler.output.request_id]
        return [assembler.output for assembler in changed]

    def shutdown(self) -> None:
        """Abort what is open and end the engine."""
        self.abort_request(list(self._requests))
        self._client.shutdown()

    def _tell_core(self, ids: list[str], reason: FinishReason) -> None:
        if ids:
            self._client.abort_requests(ids, reason)


def _inproc_client(config: VllmConfig, recorder: ProcessRecorder) -> EngineClient:
    # Imported here: a front end over another client must not load the engine.
    from vllm_obs.engine.client_inproc import InprocClient

    return InprocClient(config, recorder)


def _seed_source(seed: int) -> Callable[[], int]:
    draws = random.Random(seed)
    return lambda: draws.getrandbits(63)
