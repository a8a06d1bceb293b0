"""What a reply tells, put together from the chunks of its stream, or read from it whole: the two are compared."""

import json
from typing import Any

import pytest

Fields = dict[str, Any]

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details")


def chunks_of(text: str) -> list[Fields]:
    """The chunks of a stream that ends with [DONE] and holds nothing but events."""
    *frames, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = []
    for frame in frames:
        assert frame.startswith("data: "), frame
        assert "\n" not in frame, frame
        chunks.append(json.loads(frame.removeprefix("data: ")))
    return chunks


def told_whole(reply: Fields) -> Fields:
    """What a reply of either completion API tells, without ids and times. No content is empty content."""
    usage = {name: reply["usage"].get(name) for name in COUNTS}
    choices = [_chat_told(choice) if "message" in choice else _text_told(choice) for choice in reply["choices"]]
    return {
        "choices": choices,
        "usage": usage,
        "prompt_token_ids": reply.get("prompt_token_ids"),
        "kind": reply["object"],
    }


def told_by_stream(chunks: list[Fields]) -> Fields:
    """The same of a stream; no usage where none is told. AssertionError where its chunks break the protocol."""
    heads = {json.dumps([chunk[name] for name in ("id", "object", "created", "model")]) for chunk in chunks}
    assert len(heads) == 1, heads
    kind = chunks[0]["object"].removesuffix(".chunk")
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert [chunk["choices"] for chunk in chunks if not chunk["choices"]] == ([[]] if usages else [])
    assert all(chunk["choices"] for chunk in chunks[:-1])
    _check_counts_grow(usages)
    made: dict[int, _Choice] = {}
    prompts: list[Any] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            make = _Chat if kind == "chat.completion" else _Text
            (made.get(choice["index"]) or made.setdefault(choice["index"], make())).add(choice)
            prompts += [chunk["prompt_token_ids"]] if chunk.get("prompt_token_ids") else []
    assert sorted(made) == list(range(len(made)))
    assert all(prompt == prompts[0] for prompt in prompts)
    return {
        "choices": [made[number].told() for number in sorted(made)],
        "usage": {name: usages[-1].get(name) for name in COUNTS} if usages else None,
        "prompt_token_ids": prompts[0] if prompts else None,
        "kind": kind,
    }


def _check_counts_grow(usages: list[Fields]) -> None:
    """Totals never go back, and each is the sum of the other two."""
    for usage in usages:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    totals = [usage["total_tokens"] for usage in usages]
    assert totals == sorted(totals)


def _text_told(choice: Fields) -> Fields:
    names = ("text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids")
    return {name: choice[name] for name in names}


def _chat_told(choice: Fields) -> Fields:
    message = choice["message"]
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    return {
        "role": message["role"],
        "text": message["content"] or "",
        "reasoning": message["reasoning"] or "",
        "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
        "token_ids": choice["token_ids"],
    }


class _Choice:
    """What both APIs' choices have: text, ids, log-probabilities and one ending, after which nothing comes."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] | None = None
        self.logprobs: Fields | None = None
        self.ending: Fields | None = None

    def add(self, choice: Fields) -> None:
        """Take in the choice of a chunk."""
        assert self.ending is None, "something came after the end"
        if choice.get("token_ids") is not None:
            self.token_ids = (self.token_ids or []) + choice["token_ids"]
        if choice["logprobs"] is not None:
            self.logprobs = self.logprobs or {name: [] for name in choice["logprobs"]}
            for name, entries in choice["logprobs"].items():
                self.logprobs[name] += entries
        if choice["finish_reason"] is not None:
            names = ("finish_reason", "stop_reason")
            self.ending = {name: choice[name] for name in names}

    def told(self) -> Fields:
        """What all its chunks come to."""
        assert self.ending is not None, "a choice without an end"
        return {"text": self.text, "token_ids": self.token_ids, "logprobs": self.logprobs, **self.ending}


class _Text(_Choice):
    def __init__(self) -> None:
        super().__init__()
        self.prompt_token_ids: list[int] | None = None

    def add(self, choice: Fields) -> None:
        super().add(choice)
        self.text += choice["text"]
        if choice["prompt_token_ids"] is not None:
            assert self.prompt_token_ids is None, "the prompt came twice"
            self.prompt_token_ids = choice["prompt_token_ids"]

    def told(self) -> Fields:
        return {**super().told(), "prompt_token_ids": self.prompt_token_ids}


class _Chat(_Choice):
    def __init__(self) -> None:
        super().__init__()
        self.role = self.reasoning = ""
        self.calls: list[Fields] = []

    def add(self, choice: Fields) -> None:
        super().add(choice)
        delta = choice["delta"]
        assert ("role" in delta) == (not self.role), "the role comes once, first"
        self.role = delta.get("role", self.role)
        self.text += delta.get("content") or ""
        self.reasoning += delta.get("reasoning") or ""
        for part in delta.get("tool_calls", ()):
            self._add_call(part)

    def _add_call(self, part: Fields) -> None:
        if part["index"] == len(self.calls):
            assert part["type"] == "function"
            self.calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
        else:
            assert not {"id", "name"} & (part.keys() | part["function"].keys()), "a call begins once"
        self.calls[part["index"]]["arguments"] += part["function"]["arguments"]

    def told(self) -> Fields:
        assert len({call["id"] for call in self.calls}) == len(self.calls)
        calls = [(call["name"], call["arguments"]) for call in self.calls]
        return {**super().told(), "role": self.role, "reasoning": self.reasoning, "calls": calls}


def nearly(value: Any) -> Any:
    """The same to compare with: numbers that are no counts, which are log-probabilities, to 1e-4."""
    if isinstance(value, dict):
        return {name: nearly(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [nearly(entry) for entry in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
