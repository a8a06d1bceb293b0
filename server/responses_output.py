"""The output items of one response, as its text comes, with the events that tell of them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from vllm_obs.server.message_reader import Reasoning
from vllm_obs.server.responses_events import Emit
from vllm_obs.server.responses_tokens import TokenSpans
from vllm_obs.server.schema_responses_items import Item, new_item_id
from vllm_obs.server.tool_calls.events import CallDelta, Event

Logprobs = list[dict[str, Any]]


class OpenItem:
    """An item that is being written: `item` is what it is until now."""

    def __init__(self, emit: Emit, index: int, item: Item) -> None:
        self.item = item
        self._emit = emit
        self._place = {"item_id": item["id"], "output_index": index}
        self._texts: list[str] = []
        self._tell("output_item.added")

    def close(self, status: str) -> None:
        """The item is whole, or as much of it as there will be."""
        self.item["status"] = status
        self._tell("output_item.done")

    def _tell(self, kind: str) -> None:
        self._emit(f"response.{kind}", {"item": self.item, "output_index": self._place["output_index"]})


class TextItem(OpenItem):
    """An item with one part: a message's text, or reasoning."""

    def __init__(self, emit: Emit, index: int, is_reasoning: bool) -> None:
        kind = "reasoning" if is_reasoning else "message"
        role: dict[str, Any] = {"summary": []} if is_reasoning else {"role": "assistant"}
        item = {"id": new_item_id(kind), "type": kind, "status": "in_progress", **role, "content": []}
        super().__init__(emit, index, item)
        self._place["content_index"] = 0
        self.is_reasoning = is_reasoning
        self._name = "reasoning_text" if is_reasoning else "output_text"
        extra: dict[str, Any] = {} if is_reasoning else {"annotations": [], "logprobs": []}
        self.part = {"type": self._name, "text": "", **extra}
        self._emit("response.content_part.added", {**self._place, "part": self.part})
        item["content"] = [self.part]

    def add(self, text: str, logprobs: Logprobs) -> None:
        """More text; the log-probabilities are of its tokens, as far as they are known."""
        self._texts.append(text)
        fields = {**self._place, "delta": text}
        if self._name == "output_text":
            self.part["logprobs"] += logprobs
            fields["logprobs"] = logprobs
        self._emit(f"response.{self._name}.delta", fields)

    def close(self, status: str) -> None:
        """The text is over."""
        self.join()
        told = {name: value for name, value in self.part.items() if name in ("text", "logprobs")}
        self._emit(f"response.{self._name}.done", {**self._place, **told})
        self._emit("response.content_part.done", {**self._place, "part": self.part})
        super().close(status)

    def join(self) -> None:
        """Put what has come into the item."""
        self.part["text"] = "".join(self._texts)


class CallItem(OpenItem):
    """The call of a function."""

    def __init__(self, emit: Emit, index: int, begun: CallDelta) -> None:
        id_ = new_item_id("function_call")
        call = {"call_id": "call_" + id_.partition("_")[2][:24], "name": begun.name, "arguments": ""}
        super().__init__(emit, index, {"id": id_, "type": "function_call", "status": "in_progress", **call})
        self.number = begun.call

    def add(self, arguments: str) -> None:
        """More of the arguments."""
        self._texts.append(arguments)
        self._emit("response.function_call_arguments.delta", {**self._place, "delta": arguments})

    def close(self, status: str) -> None:
        """The arguments are over."""
        self.join()
        told = {"name": self.item["name"], "arguments": self.item["arguments"]}
        self._emit("response.function_call_arguments.done", {**self._place, **told})
        super().close(status)

    def join(self) -> None:
        """Put what has come into the item."""
        self.item["arguments"] = "".join(self._texts)


class Output:
    """Writes items one after the other: another kind of part, or another call, ends the one before.

    `spans` is there where a text's tokens have to be found among all, as reasoning and calls have some too.
    """

    def __init__(self, emit: Emit, spans: TokenSpans | None = None) -> None:
        self.num_reasoning_tokens = 0
        self._emit = emit
        self._spans = spans
        self._logprobs: Logprobs = []
        self._items: list[Item] = []
        self._open: TextItem | CallItem | None = None

    def write(self, parts: Sequence[Reasoning | Event], token_ids: list[int], logprobs: Logprobs) -> None:
        """The next parts, and the tokens that came with them."""
        if self._spans is not None:
            self._spans.add(token_ids)
            self._logprobs += logprobs
            logprobs = []
        for part in _merged(parts):
            if isinstance(part, CallDelta):
                self._write_call(part)
            elif part.text:
                self._text_item(isinstance(part, Reasoning)).add(part.text, logprobs)
        if logprobs and not parts:
            self._text_item(is_reasoning=False).add("", logprobs)

    def close(self, status: str) -> list[Item]:
        """All items, the last one with this status. A response that holds nothing holds an empty message."""
        if not self._items:
            self._text_item(is_reasoning=False)
        self._close_open(status)
        return self._items

    def cut(self) -> list[Item]:
        """What there is until now, without a word about it: nothing more will come."""
        if self._open is not None:
            self._open.join()
            self._open.item["status"] = "incomplete"
        return self._items

    def items(self) -> list[Item]:
        """What there is until now."""
        if self._open is not None:
            self._open.join()
        return self._items

    def _text_item(self, is_reasoning: bool) -> TextItem:
        if not (isinstance(self._open, TextItem) and self._open.is_reasoning == is_reasoning):
            self._close_open("completed")
            self._open = TextItem(self._emit, len(self._items), is_reasoning)
            self._items.append(self._open.item)
        return self._open

    def _write_call(self, part: CallDelta) -> None:
        if not (isinstance(self._open, CallItem) and self._open.number == part.call):
            self._close_open("completed")
            self._open = CallItem(self._emit, len(self._items), part)
            self._items.append(self._open.item)
        if part.arguments:
            self._open.add(part.arguments)

    def _close_open(self, status: str) -> None:
        if isinstance(self._open, TextItem) and self._spans is not None:
            self._open.join()
            span = self._spans.find(self._open.part["text"])
            if self._open.is_reasoning:
                self.num_reasoning_tokens += len(span)
            elif self._logprobs:
                self._open.part["logprobs"] = self._logprobs[span.start : span.stop]
        if self._open is not None:
            self._open.close(status)
        self._open = None


def _merged(parts: Sequence[Reasoning | Event]) -> Iterator[Reasoning | Event]:
    """The same with neighbours of one kind in one: parsers give some of them letter by letter."""
    for _, group in groupby(parts, lambda part: (type(part), getattr(part, "call", None))):
        first, *more = group
        if isinstance(first, CallDelta):
            arguments = "".join(getattr(part, "arguments", "") for part in more)
            yield first._replace(arguments=first.arguments + arguments)
        else:
            yield first._replace(text=first.text + "".join(getattr(part, "text", "") for part in more))
