"""One HTTP request's sequences: submitted to the engine, and read back as one stream of numbered choices."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.types import Scope

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.frontend.open_sequence import TextSink
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.request_stream import RequestStream, Take
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.cache_domain import cache_domain
from vllm_obs.server.deadline import Deadline
from vllm_obs.server.entry import Entry
from vllm_obs.server.errors import ApiError, request_failed
from vllm_obs.server.reply_metrics import Arrived
from vllm_obs.server.request_id import adopt_label
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.state import ApiServer

logger = logging.getLogger(__name__)

Prompt = str | list[int]
Numbered = tuple[int, SequenceDelta]


@dataclass
class Call:
    """What an HTTP request brings to the engine beside prompts and parameters; moments are monotonic ns.

    `entry` keeps its room in the queue; None where it is for no queue, or came by no gate.
    """

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
    cache_owner: str
    stream: bool
    deadline: Deadline | None = None
    entry: Entry | None = None

    @classmethod
    def of(cls, scope: Scope, request: SamplingRequest, model: str) -> "Call":
        """The call of a request that has just been parsed, under the model name that its reply carries."""
        state, now = scope["state"], time.monotonic_ns()
        adopt_label(state, request.request_id)
        call = cls(
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
            cache_owner=state.get("cache_owner", ""),
            stream=request.stream,
            deadline=state.get("deadline"),
            entry=state.get("entry"),
        )
        call.ask(1)
        return call

    def ask(self, num_sequences: int) -> None:
        """Keep room for so many sequences in all; ApiError or OverloadedError, both 429, where there is none."""
        if self.entry is not None:
            self.entry.ask(num_sequences, self.priority)

    def check_num_sequences(self, api: ApiServer, num_prompts: int, n: int, field: str = "prompt") -> None:
        """ApiError when prompts times n is more than one request may ask for; `ask` for them otherwise.

        `field` is the one that the prompts came in.
        """
        limit = api.server.limits.max_sequences
        if n >= 1 and num_prompts * n > limit:
            message = f"{num_prompts} prompts times n={n} is over the limit of {limit} sequences a request"
            raise ApiError(message, "too_many_sequences", param=field if num_prompts > limit else "n")
        for num_sequences, param in ((num_prompts, field), (num_prompts * n, "n")):
            try:
                self.ask(num_sequences)
            except RequestError as error:
                raise ApiError(str(error), error.reason, param=param) from error


class Generation:
    """The streams of one HTTP request, one a prompt; choice `n * prompt + sequence` belongs to that sequence."""

    def __init__(self, api: ApiServer, call: Call, num_sequences: int) -> None:
        self._api = api
        self._call = call
        self._n = num_sequences
        self._streams: list[RequestStream] = []
        self._is_late = False
        self._alarm: asyncio.TimerHandle | None = None
        if call.deadline is not None:
            self._alarm = asyncio.get_running_loop().call_later(call.deadline.left_seconds, self._expire)

    @classmethod
    async def submit(
        cls, api: ApiServer, call: Call, prompts: list[Prompt], params: SamplingParams
    ) -> "Generation":
        """All prompts are accepted, or none runs: RequestError, or EngineDeadError; ApiError 429 or 504."""
        generation = cls(api, call, params.n)
        try:
            call.ask(len(prompts) * params.n)
            for index, prompt in enumerate(prompts):
                await generation._submit_one(index, prompt, params, len(prompts))
                if index + 1 < len(prompts):
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
        if call.deadline is not None and (self._is_late or not call.deadline.left_seconds):
            raise call.deadline.passed()
        stream = await self._api.engine.llm.submit(
            prompt,
            params,
            f"{call.request_id}-{index}",
            priority=call.priority,
            cache_salt=cache_domain(call.cache_owner, call.cache_salt),
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
            deadline_at=call.deadline.at if call.deadline is not None else None,
            place=call.entry.place if call.entry is not None else None,
        )
        self._streams.append(stream)
        if self._is_late:  # the alarm rang while this one was on its way, and rings once
            self._expire()

    def _expire(self) -> None:
        """The deadline has come: what still runs ends with an error, and what is not sent yet never is."""
        self._is_late = True
        for stream in self._streams:
            stream.fail(RequestFailedError("The request's deadline has passed.", "timeout"))

    async def deltas(self) -> AsyncGenerator[Numbered, None]:
        """The deltas of all choices as they come; ApiError when a sequence fails. Reading slowly merges deltas."""
        if len(self._streams) == 1:
            async for delta in self._streams[0]:
                yield delta.index, self._checked(delta)
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
                        yield number, self._checked(delta)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    def offer(self, take: Take, take_text: TextSink) -> None:
        """Offer each delta to `take` before `deltas` gives it; only where there is one prompt: its indices are the
        numbers of the choices, and no delta lies between its stream and `deltas`. `take` must leave failed ones.
        What is only text is offered to `take_text` before.
        """
        if len(self._streams) == 1:
            self._streams[0].offer(take, take_text)

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

    def _checked(self, delta: SequenceDelta) -> SequenceDelta:
        if delta.finish_reason == "error":
            error, deadline = delta.error, self._call.deadline
            if error is not None and error.reason == "timeout" and deadline is not None:
                raise deadline.passed()
            raise request_failed("internal_error") if error is None else request_failed(error.reason, str(error))
        return delta

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
        if self._alarm is not None:
            self._alarm.cancel()
        for stream in self._streams:
            await stream.aclose()


def _summary(prompts: list[Prompt], params: SamplingParams, call: Call) -> str:
    """Lengths and settings, never the text."""
    lengths = ", ".join(f"{len(p)} {'characters' if isinstance(p, str) else 'tokens'}" for p in prompts[:8])
    return (
        f"{len(prompts)} prompt(s) of {lengths}, n={params.n}, max_tokens={params.max_tokens}, "
        f"temperature={params.temperature}, stream={call.stream}"
    )
