"""The replies of /v1/chat/completions: whole, and as chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.generation import Generation
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.message_reader import MessageReader, whole_calls
from vllm_obs.server.reasoning_count import ReasoningCount
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.stream_usage import StreamUsage
from vllm_obs.server.streamed_reply import StreamedReply
from vllm_obs.server.text_frame import TextFrame
from vllm_obs.server.usage import Usage

ROLE = "assistant"


@dataclass(frozen=True)
class ShownPrompt:
    """What replies say of prompts: `echoes`, one for each conversation, are put before its answers."""

    echoes: Sequence[str] = ("",)
    text: str | None = None


@dataclass(frozen=True)
class ChatShape:
    """How this request wants its choices. `readings` are one for each conversation: the ends of prompts differ."""

    request: ChatCompletionRequest
    head: ReplyHead
    logprobs: LogprobShapes
    readings: Sequence[ChatReading]
    prompt: ShownPrompt

    @property
    def reading(self) -> ChatReading:
        """What holds for all choices."""
        return self.readings[0]

    def make_reader(self, number: int) -> MessageReader:
        """What reads choice `number`."""
        return self.readings[number // self.request.n].make_reader()

    def echo_of(self, number: int) -> str:
        """The text put in front of choice `number`."""
        return self.prompt.echoes[number // self.request.n]

    def whole(self, choices: list[SequenceDelta], usage: Usage) -> dict[str, Any]:
        """The reply with all choices complete."""
        return chat_reply(self, choices, usage)

    def streamed(self, generation: Generation, usage: StreamUsage) -> StreamedReply:
        """The events of the streamed reply."""
        chunks = _Chunks(self, usage)
        return StreamedReply(generation, chunks.events, lambda: usage.last_event(self.head), chunks.text_frames)

    def reasoning_count(self) -> ReasoningCount | None:
        """What counts the reasoning of one choice, None where there is none to be told apart."""
        if self.reading.make_thoughts is None:
            return None
        tokenizer = self.logprobs.tokenizer
        return ReasoningCount(tokenizer, self.reading.skips_special(self.request.skip_special_tokens, tokenizer))

    def logprobs_of(self, delta: SequenceDelta) -> dict[str, Any] | None:
        """The `logprobs` of what a delta brings."""
        if not self.request.logprobs:
            return None
        return self.logprobs.chat(delta.logprobs or [], self.request.top_logprobs or 0)


def chat_reply(shape: ChatShape, choices: list[SequenceDelta], usage: Usage) -> dict[str, Any]:
    """The whole reply."""
    rows = [_choice(shape, number, choice, usage) for number, choice in enumerate(choices)]
    prompt_logprobs = choices[0].prompt_logprobs
    return {
        **shape.head.fields(),
        "choices": rows,
        "service_tier": None,
        "system_fingerprint": shape.head.fingerprint,
        "usage": usage.for_reply(),
        "prompt_logprobs": None if prompt_logprobs is None else shape.logprobs.prompt(prompt_logprobs),
        "prompt_token_ids": choices[0].prompt_token_ids if shape.request.return_token_ids else None,
        "prompt_text": shape.prompt.text,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _choice(shape: ChatShape, number: int, choice: SequenceDelta, usage: Usage) -> dict[str, Any]:
    message = shape.make_reader(number).feed(choice.text, is_last=True)
    usage.add(number, choice)
    if (count := shape.reasoning_count()) is not None:
        count.add(choice.token_ids, message.reasoning)
        usage.add_reasoning(number, count.total())
    content = shape.echo_of(number) + message.content
    calls = {"tool_calls": whole_calls(message.calls)} if message.calls else {}
    return {
        "index": number,
        "message": {
            "role": ROLE,
            "content": content if content or not (message.calls or message.reasoning) else None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            **calls,
            "reasoning": (shape.reading.shows_reasoning and message.reasoning) or None,
        },
        "logprobs": shape.logprobs_of(choice),
        "finish_reason": shape.reading.finish_reason(choice.finish_reason, bool(message.calls)),
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if shape.request.return_token_ids else None,
        "routed_experts": None,
    }


class _Chunks:
    """Writes the events of a delta: the role before a choice's first text, then the text."""

    def __init__(self, shape: ChatShape, usage: StreamUsage) -> None:
        self._shape = shape
        self._usage = usage
        self._prefix = shape.head.chunk_prefix()
        self._begun: set[int] = set()
        self._readers: dict[int, MessageReader] = {}
        self._counts: dict[int, ReasoningCount | None] = {}
        self.text_frames: dict[int, TextFrame] = {}
        request = shape.request
        has_more = request.return_token_ids or request.logprobs or usage.is_continuous
        self._is_plain = shape.reading.is_plain and not has_more

    def events(self, number: int, delta: SequenceDelta) -> bytes:
        """The events of a delta; no text event for half a character, unless its tokens are asked for."""
        if delta.finish_reason is None and (frame := self.text_frames.get(number)) is not None:
            return frame(delta.text) if delta.text else b""
        request = self._shape.request
        self._usage.add(number, delta)
        events = b"" if number in self._begun else self._role_event(number, delta)
        wants_tokens = bool(delta.token_ids) and (request.return_token_ids or request.logprobs)
        brought = {"content": delta.text} if self._shape.reading.is_plain else self._read(number, delta)
        if delta.finish_reason is not None or wants_tokens or any(brought.values()):
            events += self._text_event(number, delta, brought)
        if self._is_plain and number not in self.text_frames:
            more = SequenceDelta(delta.request_id, delta.index)
            self.text_frames[number] = TextFrame(lambda text: self._text_event(number, more, {"content": text}))
        return events

    def _read(self, number: int, delta: SequenceDelta) -> dict[str, Any]:
        """What a delta brings to a choice that is more than its text."""
        reader = self._readers.get(number) or self._readers.setdefault(number, self._shape.make_reader(number))
        message = reader.feed(delta.text, is_last=delta.finish_reason is not None)
        self._count_reasoning(number, delta, message.reasoning)
        if not self._shape.reading.shows_reasoning:
            message = message._replace(reasoning="")
        return message.for_chunk()

    def _count_reasoning(self, number: int, delta: SequenceDelta, reasoning: str) -> None:
        if number not in self._counts:
            self._counts[number] = self._shape.reasoning_count()
        if (count := self._counts[number]) is not None:
            count.add(delta.token_ids, reasoning)
            if delta.finish_reason is not None:
                self._usage.add_reasoning(number, count.total())

    def _has_calls(self, number: int) -> bool:
        return number in self._readers and self._readers[number].has_calls

    def _role_event(self, number: int, delta: SequenceDelta) -> bytes:
        is_first = not self._begun
        self._begun.add(number)
        prompt_ids = delta.prompt_token_ids if self._shape.request.return_token_ids else None
        tail = b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        tail += b',"prompt_text":' + orjson.dumps(self._shape.prompt.text if is_first else None)
        return self._bare_event(number, {"role": ROLE, "content": ""}, tail) + self._echo_event(number)

    def _echo_event(self, number: int) -> bytes:
        echo = self._shape.echo_of(number)
        return self._bare_event(number, {"content": echo}) if echo else b""

    def _bare_event(self, number: int, brought: dict[str, Any], tail: bytes = b"") -> bytes:
        """An event of what no token made."""
        choice = {"index": number, "delta": brought, "logprobs": None, "finish_reason": None}
        return self._prefix + orjson.dumps(choice) + b"]" + self._usage.suffix() + tail + b"}\n\n"

    def _text_event(self, number: int, delta: SequenceDelta, brought: dict[str, Any]) -> bytes:
        choice: dict[str, Any] = {
            "index": number,
            "delta": brought,
            "logprobs": self._shape.logprobs_of(delta),
            "finish_reason": self._shape.reading.finish_reason(delta.finish_reason, self._has_calls(number)),
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.token_ids if self._shape.request.return_token_ids else None
        return self._prefix + orjson.dumps(choice) + b"]" + self._usage.suffix() + b"}\n\n"
