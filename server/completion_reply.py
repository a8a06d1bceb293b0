"""The replies of /v1/completions: whole, and as chunks of a stream."""

from dataclasses import dataclass
from typing import Any

import orjson

from vllm_obs.engine.frontend.outputs import SequenceDelta, TokenLogprob
from vllm_obs.server.generation import Generation
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.stream_usage import StreamUsage
from vllm_obs.server.streamed_reply import StreamedReply
from vllm_obs.server.text_frame import TextFrame
from vllm_obs.server.text_offsets import TextOffsets
from vllm_obs.server.usage import Usage


@dataclass(frozen=True)
class CompletionShape:
    """How this request wants its choices."""

    request: CompletionRequest
    head: ReplyHead
    logprobs: LogprobShapes

    def whole(self, choices: list[SequenceDelta], usage: Usage) -> dict[str, Any]:
        """The reply with all choices complete."""
        return completion_reply(self, choices, usage)

    def streamed(self, generation: Generation, usage: StreamUsage) -> StreamedReply:
        """The events of the streamed reply."""
        chunks = _Chunks(self, usage)
        return StreamedReply(generation, chunks.event, lambda: usage.last_event(self.head), chunks.text_frames)

    def text_offsets(self) -> TextOffsets:
        """What tells of one choice where its tokens begin."""
        return TextOffsets(self.logprobs.tokenizer, self.request.skip_special_tokens)

    def echo_of(self, number: int, first: SequenceDelta) -> str | None:
        """The text put in front of choice `number`: its prompt as sent, or as used when that is something else."""
        if not self.request.echo:
            return None
        sent, used = self._prompt_as_sent(number), first.prompt_token_ids or []
        return sent or self.logprobs.tokenizer.decode(used, skip_special_tokens=self.request.skip_special_tokens)

    def _prompt_as_sent(self, number: int) -> str:
        """The prompt of choice `number`; empty where it was not text, or only a part of it is used."""
        prompt = self.request.prompt[number // self.request.n]
        return prompt if isinstance(prompt, str) and self.request.truncate_prompt_tokens is None else ""

    def logprobs_of(
        self, number: int, delta: SequenceDelta, offsets: TextOffsets, echo: str | None
    ) -> dict[str, Any] | None:
        """The `logprobs` of what a delta brings, after those of the prompt where it is echoed."""
        if self.request.logprobs is None:
            return None
        token_ids, places = list[int](), list[int]()
        entries: list[TokenLogprob | None] = []
        if echo is not None:
            token_ids, entries = delta.prompt_token_ids or [], delta.prompt_logprobs or []
            skips_special = self.request.skip_special_tokens and not self._prompt_as_sent(number)
            places = offsets.of_prompt(token_ids, echo, skips_special)
        return self.logprobs.completion(
            token_ids + delta.token_ids,
            [*entries, *(delta.logprobs or [])],
            places + offsets.of(delta.token_ids),
        )


def completion_reply(shape: CompletionShape, choices: list[SequenceDelta], usage: Usage) -> dict[str, Any]:
    """The whole reply."""
    for number, choice in enumerate(choices):
        usage.add(number, choice)
    return {
        **shape.head.fields(),
        "choices": [_choice(shape, number, choice) for number, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": shape.head.fingerprint,
        "usage": usage.for_reply(),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _choice(shape: CompletionShape, number: int, choice: SequenceDelta) -> dict[str, Any]:
    request = shape.request
    prompt_logprobs = choice.prompt_logprobs
    echo = shape.echo_of(number, choice)
    return {
        "index": number,
        "text": (echo or "") + choice.text,
        "logprobs": shape.logprobs_of(number, choice, shape.text_offsets(), echo),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if request.return_token_ids else None,
        "prompt_logprobs": None if prompt_logprobs is None else shape.logprobs.prompt(prompt_logprobs),
        "prompt_token_ids": choice.prompt_token_ids if request.return_token_ids else None,
        "routed_experts": None,
    }


class _Chunks:
    """Writes one event for each delta that says something."""

    def __init__(self, shape: CompletionShape, usage: StreamUsage) -> None:
        self._shape = shape
        self._usage = usage
        self._prefix = shape.head.chunk_prefix()
        self._offsets: dict[int, TextOffsets] = {}
        self.text_frames: dict[int, TextFrame] = {}
        request = shape.request
        self._is_plain = not (request.return_token_ids or request.logprobs is not None or usage.is_continuous)

    def event(self, number: int, delta: SequenceDelta) -> bytes:
        """The event of a delta; empty when a half character is all there is and nobody wants token ids."""
        if delta.finish_reason is None and (frame := self.text_frames.get(number)) is not None:
            return frame(delta.text) if delta.text else b""
        request = self._shape.request
        self._usage.add(number, delta)
        is_first = number not in self._offsets
        offsets = self._offsets.get(number) or self._offsets.setdefault(number, self._shape.text_offsets())
        echo = self._shape.echo_of(number, delta) if is_first else None
        text = (echo or "") + delta.text
        wants_tokens = bool(delta.token_ids) and (request.return_token_ids or request.logprobs is not None)
        if not text and delta.finish_reason is None and not wants_tokens:
            return b""
        logprobs = self._shape.logprobs_of(number, delta, offsets, echo)
        if self._is_plain and number not in self.text_frames:
            more = SequenceDelta(delta.request_id, delta.index)
            self.text_frames[number] = TextFrame(lambda text: self._written(number, more, text, None))
        return self._written(number, delta, text, logprobs)

    def _written(self, number: int, delta: SequenceDelta, text: str, logprobs: dict[str, Any] | None) -> bytes:
        wants_ids = self._shape.request.return_token_ids
        choice = {
            "index": number,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": delta.prompt_token_ids if wants_ids else None,
            "token_ids": delta.token_ids if wants_ids else None,
        }
        return self._prefix + orjson.dumps(choice) + b"]" + self._usage.suffix() + b"}\n\n"
