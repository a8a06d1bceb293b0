"""ResponseBuilder: one response from its first event to its last, whichever way its text comes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.errors import ApiError
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.responses_events import Emit
from vllm_obs.server.responses_output import Logprobs, Output
from vllm_obs.server.responses_resource import Progress, Resource, ResourceHead, usage_fields
from vllm_obs.server.responses_tokens import TokenSpans

TERMINAL = {"completed": "completed", "incomplete": "incomplete", "failed": "failed", "cancelled": "incomplete"}
"""The last event of each status; there is none of its own for a response that was cancelled."""
STATUS_OF_REASON = {"length": "incomplete", "abort": "cancelled"}
"""Reasons left out are good endings."""


@dataclass(frozen=True)
class ResponseShape:
    """How one request wants its response; `now` gives seconds of wall time."""

    head: ResourceHead
    reading: ChatReading
    logprobs: LogprobShapes
    now: Callable[[], int]


class ResponseBuilder:
    """Takes deltas of one sequence, tells events, and is at any time the response until then."""

    def __init__(self, shape: ResponseShape, emit: Emit) -> None:
        reading = shape.reading
        finds_tokens = not reading.is_plain and (reading.make_thoughts is not None or self._wants_logprobs(shape))
        self._shape = shape
        self._emit = emit
        self._reader = reading.make_reader()
        self._output = Output(emit, self._spans(shape) if finds_tokens else None)
        self._last: SequenceDelta | None = None
        self.status = "queued" if shape.head.request.background else "in_progress"

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.status in TERMINAL

    def begin(self) -> None:
        """Tell that there is a response."""
        self._tell("created")
        if self.status == "queued":
            self._tell("queued")

    def start(self) -> None:
        """Tell that it is being made."""
        self.status = "in_progress"
        self._tell("in_progress")

    def add(self, delta: SequenceDelta) -> None:
        """The next of its text."""
        is_last = delta.finish_reason is not None
        self._output.write(self._reader.parts(delta.text, is_last), delta.token_ids, self._logprobs(delta))
        self._last = delta

    def finish(self) -> Resource:
        """All of it came: the whole response."""
        assert self._last is not None
        self.status = STATUS_OF_REASON.get(self._last.finish_reason or "", "completed")
        is_completed = self.status == "completed"
        self._output.close("completed" if is_completed else "incomplete")
        return self._end(completed_at=self._shape.now() if is_completed else None)

    def fail(self, error: ApiError) -> Resource:
        """No more will come, because of an error."""
        self.status = "failed"
        self._output.cut()
        return self._end(error=error)

    def cancel(self) -> Resource:
        """No more will come, because its client wants no more."""
        self.status = "cancelled"
        self._output.cut()
        return self._end()

    def resource(self, **progress: Any) -> Resource:
        """The response until now."""
        usage = self._usage() if self.is_over else None
        return self._shape.head.resource(Progress(self.status, self._output.items(), usage, **progress))

    def _end(self, **progress: Any) -> Resource:
        resource = self.resource(**progress)
        self._emit(f"response.{TERMINAL[self.status]}", {"response": resource})
        return resource

    def _tell(self, kind: str) -> None:
        self._emit(f"response.{kind}", {"response": self.resource()})

    def _usage(self) -> dict[str, Any] | None:
        last = self._last
        if last is None:
            return None
        num_reasoning = self._output.num_reasoning_tokens
        return usage_fields(last.num_prompt_tokens, last.num_cached_tokens, last.num_output_tokens, num_reasoning)

    def _logprobs(self, delta: SequenceDelta) -> Logprobs:
        if not self._wants_logprobs(self._shape):
            return []
        num_top = self._shape.head.request.top_logprobs or 0
        content: Logprobs = self._shape.logprobs.chat(delta.logprobs or [], num_top)["content"]
        return content

    @staticmethod
    def _spans(shape: ResponseShape) -> TokenSpans:
        tokenizer = shape.logprobs.tokenizer
        return TokenSpans(
            tokenizer, shape.reading.skips_special(shape.head.request.skip_special_tokens, tokenizer)
        )

    @staticmethod
    def _wants_logprobs(shape: ResponseShape) -> bool:
        return shape.head.request.wants_logprobs
