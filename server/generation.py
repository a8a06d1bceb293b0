"""One HTTP request's sequences: submitted to the engine, and read back as one stream of numbered choices."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.types import Scope

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.request_stream import RequestStream
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.errors import ApiError, request_failed
from vllm_obs.server.reply_metrics import Arrived
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.state import ApiServer

logger = logging.getLogger(__name__)

Prompt = str | list[int]
Numbered = tuple[int, SequenceDelta]


@dataclass
class Call:
    """What an HTTP request brings to the engine beside prompts and parameters; moments are monotonic ns."""

    request_id: str
    label: str
    account: str
    operation: str
    model: str
    trace_parent: str
    received_at: int
    parsed_at: int
    rendered_at: int
    priority: int
    cache_salt: str | None
    stream: bool

    @classmethod
    def of(cls, scope: Scope, request: SamplingRequest, model: str) -> "Call":
        """The call of a request that has just been parsed, under the model name that its reply carries."""
        state, now = scope["state"], time.monotonic_ns()
        return cls(
            request_id=state["request_id"],
            label=state["label"],
            account=state.get("account", ""),
            operation=request.operation,
            model=model,
            trace_parent=state["trace_parent"],
            received_at=state["received_at"],
            parsed_at=now,
            rendered_at=now,
            priority=request.priority,
            cache_salt=request.cache_salt,
            stream=request.stream,
        )

    def check_num_sequences(self, api: ApiServer, num_prompts: int, n: int) -> None:
        """ApiError when prompts times n is more than one request may ask for."""
        limit = api.server.limits.max_sequences
        if n >= 1 and num_prompts * n > limit:
            message = f"{num_prompts} prompts times n={n} is over the limit of {limit} sequences a request"
            raise ApiError(message, "too_many_sequences", param="prompt" if num_prompts > limit else "n")


class Generation:
    """The streams of one HTTP request, one a prompt; choice `n * prompt + sequence` belongs to that sequence."""

    def __init__(self, api: ApiServer, call: Call, num_sequences: int) -> None:
        self._api = api
        self._call = call
        self._n = num_sequences
        self._streams: list[RequestStream] = []

    @classmethod
    async def submit(
        cls, api: ApiServer, call: Call, prompts: list[Prompt], params: SamplingParams
    ) -> "Generation":
        """All prompts are accepted, or none runs: RequestError, or EngineDeadError."""
        generation = cls(api, call, params.n)
        try:
            for index, prompt in enumerate(prompts):
                await generation._submit_one(index, prompt, params, len(prompts))
                await asyncio.sleep(0)  # a thousand prompts must not keep the loop from everybody else
        except BaseException:
            await generation.aclose()
            raise
        if api.config.observability.enable_log_requests:
            label = call.label[: api.server.max_log_len]
            logger.info("request %s (%s): %s", call.request_id, label, _summary(prompts, params, call))
        return generation

    async def _submit_one(self, index: int, prompt: Prompt, params: SamplingParams, num_prompts: int) -> None:
        call = self._call
        stream = await self._api.engine.llm.submit(
            prompt,
            params,
            f"{call.request_id}-{index}",
            priority=call.priority,
            cache_salt=call.cache_salt,
            received_at=call.received_at,
            parsed_at=call.parsed_at,
            rendered_at=call.rendered_at,
            http_id=call.request_id,
            external_id=call.label,
            account=call.account,
            operation=call.operation,
            model=call.model,
            trace_parent=call.trace_parent,
            stream=call.stream,
            num_prompts=num_prompts,
        )
        self._streams.append(stream)

    async def deltas(self) -> AsyncGenerator[Numbered, None]:
        """The deltas of all choices as they come; ApiError when a sequence fails. Reading slowly merges deltas."""
        if len(self._streams) == 1:
            async for delta in self._streams[0]:
                yield delta.index, _checked(delta)
            return
        queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=1)
        pumps = [asyncio.ensure_future(self._pump(index, queue)) for index in range(len(self._streams))]
        try:
            num_open = len(pumps)
            while num_open:
                match await queue.get():
                    case None:
                        num_open -= 1
                    case Exception() as error:
                        raise error
                    case number, delta:
                        yield number, _checked(delta)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(self, prompt_index: int, queue: asyncio.Queue[Numbered | Exception | None]) -> None:
        try:
            async for delta in self._streams[prompt_index]:
                await queue.put((prompt_index * self._n + delta.index, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    async def collect(self) -> list[SequenceDelta]:
        """Every choice whole, by its number."""
        choices: dict[int, SequenceDelta] = {}
        async for number, delta in self.deltas():
            if number in choices:
                choices[number].absorb(delta)
            else:
                choices[number] = delta
        return [choices[number] for number in sorted(choices)]

    @property
    def arrived(self) -> Arrived:
        """When the request came, for its reply to tell."""
        call = self._call
        return Arrived(call.received_at, call.parsed_at, call.rendered_at)

    @property
    def num_choices(self) -> int:
        """How many sequences it has in all."""
        return len(self._streams) * self._n

    @property
    def request_id(self) -> str:
        """Our id of the HTTP request."""
        return self._call.request_id

    async def aclose(self) -> None:
        """Abort what still runs."""
        for stream in self._streams:
            await stream.aclose()


def _summary(prompts: list[Prompt], params: SamplingParams, call: Call) -> str:
    """Lengths and settings, never the text."""
    lengths = ", ".join(f"{len(p)} {'characters' if isinstance(p, str) else 'tokens'}" for p in prompts[:8])
    return (
        f"{len(prompts)} prompt(s) of {lengths}, n={params.n}, max_tokens={params.max_tokens}, "
        f"temperature={params.temperature}, stream={call.stream}"
    )


def _checked(delta: SequenceDelta) -> SequenceDelta:
    if delta.finish_reason == "error":
        raise request_failed(delta.error.reason if delta.error is not None else "internal_error")
    return delta
