"""What the typed events of /v1/responses and /v1/messages come to, put together as a client would, and checked."""

import json
from typing import Any

Fields = dict[str, Any]

NEW = ("id", "call_id", "item_id", "created_at", "completed_at")
"""What is another one each time."""


def typed_events(text: str) -> list[Fields]:
    """The events of a stream; the name of each is its type."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def without_new(value: Any) -> Any:
    """The same, without what is new each time."""
    if isinstance(value, dict):
        return {name: without_new(entry) for name, entry in value.items() if name not in NEW}
    return [without_new(entry) for entry in value] if isinstance(value, list) else value


def told_response(text: str) -> Fields:
    """The response that a stream ends with. AssertionError where its events before come to something else."""
    events = typed_events(text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response: Fields = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    made = _Items()
    for event in events[2:-1]:
        made.add(event)
    assert made.open_item is None
    assert made.items == response["output"]
    return response


class _Items:
    """The output items of a response: one is open at a time, and whole before the next one begins."""

    def __init__(self) -> None:
        self.items: list[Fields] = []
        self.open_item: Fields | None = None
        self._text = ""
        self._logprobs: list[Fields] = []
        self._done: Fields = {}

    def add(self, event: Fields) -> None:
        """Take in an event that is neither of the first two nor the last one."""
        match event["type"].split(".")[1:]:
            case ["output_item", "added"]:
                assert (self.open_item, event["output_index"]) == (None, len(self.items))
                self.open_item, self._text, self._logprobs, self._done = event["item"], "", [], {}
            case ["content_part", "added"]:
                assert (event["part"]["text"], event["content_index"]) == ("", 0)
            case [_, "delta"]:
                self._text += event["delta"]
                self._logprobs += event.get("logprobs", ())
            case ["content_part", "done"]:
                assert event["part"]["text"] == self._done["text"]
            case ["output_item", "done"]:
                self._close(event["item"])
            case [_, "done"]:
                self._done = event
                assert event["arguments" if "arguments" in event else "text"] == self._text
        if self.open_item is not None and "item_id" in event:
            assert event["item_id"] == self.open_item["id"]

    def _close(self, item: Fields) -> None:
        assert self.open_item is not None
        assert item["id"] == self.open_item["id"]
        if item["type"] == "function_call":
            assert (item["name"], item["arguments"]) == (self.open_item["name"], self._text)
        else:
            (part,) = item["content"]
            assert part["text"] == self._text
            assert not self._logprobs or part["logprobs"] == self._logprobs
        self.items.append(item)
        self.open_item = None


def told_message(text: str) -> Fields:
    """The message that a stream of /v1/messages comes to, in the shape of the whole one."""
    events = typed_events(text)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message: Fields = events[0]["message"]
    texts: list[str] = []
    open_index = None
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(texts))
                open_index = event["index"]
                message["content"].append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                assert open_index == event["index"]
                texts[-1] += _delta_text(event["delta"], message["content"][-1]["type"])
            case "content_block_stop":
                assert open_index == event["index"]
                open_index = None
    assert open_index is None
    for block, joined in zip(message["content"], texts, strict=True):
        _fill(block, joined)
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def _delta_text(delta: Fields, kind: str) -> str:
    fields = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
    fields |= {"input_json_delta": ("tool_use", "partial_json"), "signature_delta": ("thinking", "")}
    wanted, name = fields[delta["type"]]
    assert wanted == kind
    return str(delta[name]) if name else ""


def _fill(block: Fields, joined: str) -> None:
    """A tool's input is an object; one that was cut off is empty."""
    if block["type"] != "tool_use":
        block[block["type"]] = joined
        return
    try:
        block["input"] = json.loads(joined or "{}")
    except ValueError:
        block["input"] = {}
