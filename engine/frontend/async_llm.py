"""The asynchronous front of the engine: one object a server asks for tokens."""

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Unpack

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import EngineDeadError, RequestFailedError
from vllm_obs.engine.frontend.abort_sender import AbortSender
from vllm_obs.engine.frontend.answer_watch import AnswerWatch
from vllm_obs.engine.frontend.async_input_processor import AsyncInputProcessor
from vllm_obs.engine.frontend.client_interface import AsyncEngineClient
from vllm_obs.engine.frontend.engine_losses import EngineLosses
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.frontend.input_processor import PreparedPrompt, Prompt, make_sequences
from vllm_obs.engine.frontend.open_sequence import AT_THE_END, SequenceRequest
from vllm_obs.engine.frontend.output_handler import READING_FAILED, OutputHandler
from vllm_obs.engine.frontend.output_processor import OutputProcessor
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.poison_book import SecondTry
from vllm_obs.engine.frontend.request_options import RequestOptions, arrival_of
from vllm_obs.engine.frontend.request_stream import DeltaQueue, RequestStream
from vllm_obs.engine.frontend.stats_line import StatsLine
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishReason
from vllm_obs.engine.queue_bound import QueueLimits
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0
_SEQUENCES_A_TURN = 16


class AsyncLLM:
    """Takes prompts from coroutines of one event loop and gives each its stream of deltas.

    It outlives engines: the sequences of one that dies end, and another may be let in in its place.
    """

    def __init__(
        self,
        config: VllmConfig,
        client: AsyncEngineClient,
        tokenizer: Tokenizer,
        recorder: Recorder,
        client_index: int = 0,
    ) -> None:
        """`client_index` tells several API servers of one engine apart."""
        self.config = config
        self.client_index = client_index
        self.tokenizer = tokenizer
        self._client = client
        self._recorder = recorder
        self.inputs = AsyncInputProcessor(config, tokenizer)
        """Makes token ids of texts."""
        observability = config.observability
        self._outputs = OutputProcessor(tokenizer, recorder, client_index)
        is_logged, is_one_line = not observability.disable_log_stats, observability.aggregate_engine_logging
        num_own = (lambda: self._outputs.num_open) if config.scheduler.num_clients > 1 else None
        self._stats_line = StatsLine(is_logged, is_one_line, num_own)
        limits = QueueLimits.from_config(config).share_of(config.scheduler.num_clients)
        self.queue = FrontQueue(limits, lambda: self._outputs.num_open)
        self._handles: dict[str, list[list[str]]] = {}
        self._queues: dict[str, DeltaQueue] = {}
        self._aborts = AbortSender(client, self.queue)
        self._died = asyncio.Event()
        self.answers = AnswerWatch()
        """Whether the model still gives numbers."""
        num_seqs = config.scheduler.max_num_seqs
        self.losses = EngineLosses(self._outputs, self.queue, num_seqs, self._see_whether_dead)
        """What becomes of the sequences of engines that die."""
        self._handler = OutputHandler(client, self.losses, self._take, self._end_all)

    def start(self) -> None:
        """Begin reading the engine's outputs. Call it on the event loop, once the client is ready."""
        self.inputs.fit(self._client.engines)
        for facts in self._client.engines:
            self.queue.attach(facts.num_gpu_blocks, facts.engine_index)
        self._handler.start()

    def let_in(self, client: Any, facts: EngineFacts) -> None:
        """Another engine is ready in the place of one that `losses` told of; `client` is its own."""
        self._client.let_in(client)
        self.losses.forget(facts.engine_index)
        self.answers.forget(facts.engine_index)
        self.inputs.fit(self._client.engines)
        self.queue.attach(facts.num_gpu_blocks, facts.engine_index)
        self._died.clear()

    async def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[SequenceDelta, None]:
        """The deltas of a request's n sequences, interleaved; closing or cancelling the generator aborts them.

        The first step raises what `submit` raises. Later failures are deltas with finish_reason `error` (reason
        `engine_dead` when the engine died).
        """
        accepted = await self.submit(prompt, params, request_id, **options)
        try:
            async for delta in accepted:
                yield delta
        finally:
            await accepted.aclose()

    async def submit(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Unpack[RequestOptions]
    ) -> RequestStream:
        """Check, tokenise, register and send; returns once the request is on its way.

        RequestError for a request that can never succeed, RequestFailedError when it cannot be taken now (an
        OverloadedError where it may be soon), EngineDeadError when there is no engine. `request_id` is a handle
        for `abort` and need not be unique. The stream must be closed.
        """
        self._require_alive()
        arrival = arrival_of(options, params.n, self.config.model.served_model_names[0])
        prepared = await self.inputs.prepare(prompt, params, arrival)
        digest = b""
        if len(self.losses.poison):  # else no engine has crashed for some minutes
            digest = await self.inputs.fingerprint(prepared.token_ids, params)
        tokenized_at = time.monotonic_ns()
        self._require_alive()
        _require_time(options.get("deadline_at"), tokenized_at)
        is_streamed = options.get("stream", True)
        sequences = make_sequences(prepared, params, arrival, _draw_seed, self.client_index)
        ids = [sequence.request_id for sequence in sequences]
        queue = DeltaQueue(params.n, partial(self._cut, request_id, ids) if is_streamed else None)
        sink, text_sink = queue.put, queue.put_text
        if digest and self.losses.poison.check(digest):
            sink = SecondTry(self.losses.poison, digest, params.n, queue.put).put
        if (place := options.get("place")) is not None:
            place.spend(params.n)
        self.queue.admit(ids, len(prepared.token_ids), is_held=params.structured_outputs is not None)
        interval = self.config.scheduler.stream_interval if is_streamed else AT_THE_END
        self._register(
            [
                SequenceRequest(
                    sequence_id, index, prepared.token_ids, params, sink, interval, tokenized_at, text_sink
                )
                for index, sequence_id in enumerate(ids)
            ]
        )
        self._handles.setdefault(request_id, []).append(ids)
        self._queues[ids[0]] = queue
        close = partial(self._close, request_id, ids)
        try:
            for sequence in sequences:
                self._recorder.record(arrival.submitted(sequence, tokenized_at))
            await self._send(sequences)
        except BaseException:
            close()
            raise
        return RequestStream(ids[0].rpartition("-")[0], queue, close, partial(self._fail, ids))

    def _register(self, requests: list[SequenceRequest]) -> None:
        """Take on what has just been queued; where that fails, it leaves the queue again."""
        try:
            self._outputs.register(*requests)
        except BaseException:
            ids = [request.request_id for request in requests]
            self.queue.leaving(ids)
            self.queue.left(ids)
            raise

    async def _send(self, sequences: list[EngineCoreRequest]) -> None:
        """Hand the sequences to the core, with room for others between; those aborted meanwhile stay here."""
        for index, sequence in enumerate(sequences, 1):
            if self._outputs.is_open(sequence.request_id):
                await self._client.add_request(sequence)
            if index % _SEQUENCES_A_TURN == 0:
                await asyncio.sleep(0)

    async def prepare(
        self, prompt: Prompt, params: SamplingParams, **options: Unpack[RequestOptions]
    ) -> PreparedPrompt:
        """What `submit` would send, checked as there; nothing is sent."""
        self._require_alive()
        arrival = arrival_of(options, params.n, self.config.model.served_model_names[0])
        return await self.inputs.prepare(prompt, params, arrival)

    async def abort(self, request_id: str) -> None:
        """Abort every request submitted under that handle; their streams end with finish_reason `abort`."""
        for ids in list(self._handles.get(request_id, [])):
            self._aborts.send(self._outputs.end(ids, FinishReason.ABORT), FinishReason.ABORT)

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call a named method of the core. RequestFailedError with its own words, EngineDeadError without one."""
        self._require_alive()
        return await self._client.call_utility(method, *args)

    @property
    def num_in_flight(self) -> int:
        """Sequences submitted and not ended."""
        return self._outputs.num_open

    @property
    def num_queued_deltas(self) -> int:
        """Deltas that wait for whoever reads their stream."""
        return sum(queue.num_waiting for queue in self._queues.values())

    @property
    def num_unknown_rows(self) -> int:
        """Rows of outputs whose sequence had ended here already."""
        return self._outputs.num_unknown_rows

    @property
    def dead_cause(self) -> str | None:
        """Why the engine is gone, None while it lives."""
        return self._handler.end_cause or self._client.dead_cause

    async def wait_dead(self) -> str:
        """Return the cause once there is no engine."""
        await self._died.wait()
        return self.dead_cause or "the engine is gone"

    async def wait_unread(self) -> str:
        """Return the cause once no outputs are read any more, whatever engine is let in."""
        return await self._handler.wait_over()

    def end_open(self) -> None:
        """End what is open with the error `shutting_down`; the readers see it at once."""
        failure = RequestFailedError("The server is shutting down.", "shutting_down")
        self._aborts.send(self._outputs.end_all(FinishReason.ERROR, failure), FinishReason.ABORT)

    async def shutdown(self) -> None:
        """`end_open`, then end the engine (which blocks while it ends)."""
        self.end_open()
        await self._aborts.wait(_SHUTDOWN_SECONDS)
        await self._handler.close()
        await self.losses.close()
        self.queue.clear()
        self.inputs.close()
        ended = self._client.shutdown()
        if inspect.isawaitable(ended):
            await ended

    def _require_alive(self) -> None:
        if (cause := self.dead_cause) is not None:
            raise EngineDeadError(cause)

    def _close(self, handle: str, ids: list[str]) -> None:
        requests = self._handles.get(handle, [])
        if ids in requests:
            requests.remove(ids)
        if not requests:
            self._handles.pop(handle, None)
        self._queues.pop(ids[0], None)
        self._aborts.send(self._outputs.end(ids, FinishReason.ABORT), FinishReason.ABORT)

    def _fail(self, ids: list[str], failure: RequestFailedError) -> None:
        self._aborts.send(self._outputs.end(ids, FinishReason.ERROR, failure), FinishReason.ERROR)

    def _cut(self, handle: str, ids: list[str]) -> None:
        if cut := self._outputs.end(ids, FinishReason.ABORT):
            logger.warning("request %s is aborted: too much of its stream was not read", handle)
            self._aborts.send(cut, FinishReason.ABORT)

    def _take(self, outputs: EngineCoreOutputs) -> None:
        try:
            self.queue.saw(outputs)
            aborts = self._outputs.process(outputs)
            self._stats_line.saw(outputs)
            self.answers.saw(outputs)
            self._aborts.send(aborts.stopped, FinishReason.STOP)
            self._aborts.send(aborts.failed, FinishReason.ERROR)
        except Exception:  # who ended with these is no longer among those that the engine is known to have
            reasons = zip(outputs.request_ids, outputs.finish_reasons, strict=True)
            ids = [request_id for request_id, reason in reasons if reason >= 0]
            self._outputs.end(ids, FinishReason.ERROR, RequestFailedError(READING_FAILED, "engine_dead"))
            self.queue.lost(ids)
            raise

    def _see_whether_dead(self) -> None:
        if self._client.dead_cause is not None:
            self._died.set()

    def _end_all(self, cause: str) -> None:
        """No more outputs will come of any engine."""
        self._died.set()
        self._outputs.end_all(FinishReason.ERROR, RequestFailedError(cause, "engine_dead"))
        self.queue.clear()


def _require_time(deadline_at: int | None, now: int) -> None:
    if deadline_at is not None and now >= deadline_at:
        raise RequestFailedError("The request's deadline passed before it could be sent.", "timeout")


def _draw_seed() -> int:
    return secrets.randbits(63)
