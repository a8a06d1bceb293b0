"""The replies of /v1/messages: whole, and as the events of a stream."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.server.anthropic_blocks import BlockWriter, Fields, content_of
from vllm_obs.server.anthropic_paths import ENVELOPE
from vllm_obs.server.boundary import reply_for
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.generation import Generation
from vllm_obs.server.message_reader import Reasoning
from vllm_obs.server.reasoning_count import ReasoningCount
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.tool_calls.events import Event

PING: Fields = {"type": "ping"}


@dataclass(frozen=True)
class MessageHead:
    """What all replies to one request share. `shows_cached` tells cached tokens apart from the others."""

    id: str
    model: str
    reading: ChatReading
    shows_cached: bool
    tokenizer: Tokenizer

    def message(
        self, content: list[Fields], delta: SequenceDelta, stop: Fields, num_thinking: int | None = None
    ) -> Fields:
        """A message with this content; `delta` has the counts until now."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            **stop,
            "usage": self.usage(delta, num_thinking),
        }

    def thinking_count(self) -> ReasoningCount | None:
        """What counts the tokens of the thoughts, None where they are not told apart."""
        if self.reading.make_thoughts is None:
            return None
        return ReasoningCount(self.tokenizer, self.reading.skips_special(True, self.tokenizer))

    def usage(self, delta: SequenceDelta, num_thinking: int | None = None) -> Fields:
        """The token counts: all of the input is the sum of the three that say input."""
        num_cached = delta.num_cached_tokens if self.shows_cached else 0
        return {
            "input_tokens": delta.num_prompt_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": delta.num_output_tokens,
            "output_tokens_details": None if num_thinking is None else {"thinking_tokens": num_thinking},
            "server_tool_use": None,
            "cache_creation": None,
            "inference_geo": None,
            "service_tier": None,
        }


def stop_fields(delta: SequenceDelta | None = None, has_calls: bool = False) -> Fields:
    """How a message ended; all null while it has not. A token that ends a turn is no stop sequence."""
    reason, sequence = None, None
    if delta is not None:
        reason = "end_turn"
        if delta.finish_reason == "length":
            reason = "max_tokens"
        elif isinstance(delta.stop_reason, str):
            reason, sequence = "stop_sequence", delta.stop_reason
        elif has_calls:
            reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}


def whole_message(head: MessageHead, choice: SequenceDelta, metrics: ReplyMetrics) -> Fields:
    """The whole reply."""
    writer = BlockWriter(head.reading.shows_reasoning)
    parts = head.reading.make_reader().parts(choice.text, is_last=True)
    num_thinking = None
    if (count := head.thinking_count()) is not None:
        count.add(choice.token_ids, _thoughts(parts))
        num_thinking = count.total()
    events = writer.write(parts) + writer.close()
    message = head.message(content_of(events), choice, stop_fields(choice, writer.has_calls), num_thinking)
    metrics.add(choice)
    return message | _timing(metrics)


class MessageEvents:
    """Writes the events of one reply, delta by delta."""

    def __init__(self, head: MessageHead, metrics: ReplyMetrics) -> None:
        self._head = head
        self._metrics = metrics
        self._reader = head.reading.make_reader()
        self._count = head.thinking_count()
        self._writer = BlockWriter(head.reading.shows_reasoning)
        self._has_begun = False

    async def frames(self, generation: Generation, state: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The stream from its first event to its last; closing it aborts what still runs.

        A failure is its last event, of type error, and its reason goes into the request's `state`.
        """
        try:
            async for number, delta in generation.deltas():
                if written := self.written(number, delta):
                    yield written
        except Exception as error:
            reply = reply_for(error, generation.request_id)
            state["reason"] = reply.reason
            reply.envelope = ENVELOPE
            yield b"event: error\ndata: " + reply.body() + b"\n\n"
        finally:
            await generation.aclose()

    def written(self, number: int, delta: SequenceDelta) -> bytes:
        """The events of the next delta of its one choice."""
        return b"".join(map(frame, self._events(delta)))

    def _events(self, delta: SequenceDelta) -> list[Fields]:
        events: list[Fields] = []
        if not self._has_begun:
            self._has_begun = True
            events = [{"type": "message_start", "message": self._head.message([], delta, stop_fields())}, PING]
        self._metrics.add(delta)
        is_last = delta.finish_reason is not None
        parts = self._reader.parts(delta.text, is_last)
        if self._count is not None:
            self._count.add(delta.token_ids, _thoughts(parts))
        events += self._writer.write(parts)
        return [*events, *self._writer.close(), *self._ending(delta)] if is_last else events

    def _ending(self, delta: SequenceDelta) -> list[Fields]:
        stop = stop_fields(delta, self._writer.has_calls)
        usage = self._head.usage(delta, self._count.total() if self._count is not None else None)
        ending = {"type": "message_delta", "delta": stop, "usage": usage, **_timing(self._metrics)}
        return [ending, {"type": "message_stop"}]


def frame(event: Fields) -> bytes:
    """An event as it is sent."""
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _thoughts(parts: Sequence[Reasoning | Event]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def _timing(metrics: ReplyMetrics) -> Fields:
    return {"metrics": metrics.fields()} if metrics.is_enabled else {}
