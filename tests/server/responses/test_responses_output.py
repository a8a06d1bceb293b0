"""However a text comes, its items are the same, and its events tell of them in order."""

import random
from typing import Any

import pytest
from http_app import tokenizer
from responses_client import without_ids

from vllm_obs.server.message_reader import MessageReader
from vllm_obs.server.reasoning import PARSERS
from vllm_obs.server.responses_output import Output
from vllm_obs.server.responses_tokens import TokenSpans
from vllm_obs.server.tool_calls.events import Tool
from vllm_obs.server.tool_calls.registry import tool_parser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>'
TEXTS = [
    "Plain \U0001f600 text",
    f"<think>So so.</think>One {CALL} two {CALL}\n{CALL}",
    f"{CALL} after",
    "<think>cut",
    f"One {CALL[:40]}",
    "",
]


class Told:
    """One way to cut a text, and what came of it."""

    def __init__(self, text: str, seed: int | None) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        make_parser = tool_parser("hermes")
        assert make_parser is not None
        reader = MessageReader(PARSERS["qwen3"](), make_parser([Tool("f", {})]))
        output = Output(self._emit, TokenSpans(tokenizer(), skips_special=True))
        for piece, is_last in pieces(text, seed):
            ids = tokenizer().encode(piece, add_special_tokens=False)
            output.write(reader.parts(piece, is_last), ids, [{"token": token} for token in ids])
        self.items = output.close("completed")
        self.num_reasoning_tokens = output.num_reasoning_tokens

    def _emit(self, kind: str, fields: dict[str, Any]) -> None:
        copied = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
        self.events.append((kind.removeprefix("response."), copied))


def pieces(text: str, seed: int | None) -> list[tuple[str, bool]]:
    if seed is None:
        return [(text, True)]
    draw = random.Random(seed)
    cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randrange(1, 12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [(part, number == len(parts) - 1) for number, part in enumerate(parts)]


def texts_of(items: list[dict[str, Any]]) -> list[Any]:
    return [
        (item["type"], item.get("arguments") or "".join(part["text"] for part in item.get("content", ())))
        for item in items
    ]


def test_the_order_of_items_is_that_of_the_text() -> None:
    assert texts_of(Told(TEXTS[1], None).items) == [
        ("reasoning", "So so."),
        ("message", "One"),
        ("function_call", '{"a": [1, "é"]}'),
        ("message", " two"),
        ("function_call", '{"a": [1, "é"]}'),
        ("function_call", '{"a": [1, "é"]}'),
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_items_do_not_depend_on_how_the_text_came(text: str) -> None:
    whole = texts_of(Told(text, None).items)
    assert all(texts_of(Told(text, seed).items) == whole for seed in range(60))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_each_item_is_begun_written_and_ended_before_the_next(text: str, seed: int | None) -> None:
    told = Told(text, seed)
    by_index: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    order = [fields["output_index"] for _, fields in told.events]
    assert order == sorted(order)
    for kind, fields in told.events:
        by_index.setdefault(fields["output_index"], []).append((kind, fields))
    assert list(by_index) == list(range(len(told.items)))
    for index, item in enumerate(told.items):
        kinds = [kind for kind, _ in by_index[index]]
        is_call = item["type"] == "function_call"
        name = {"message": "output_text", "reasoning": "reasoning_text"}.get(
            item["type"], "function_call_arguments"
        )
        begun = ["output_item.added"] + ([] if is_call else ["content_part.added"])
        ended = [f"{name}.done"] + ([] if is_call else ["content_part.done"]) + ["output_item.done"]
        assert kinds == begun + [f"{name}.delta"] * (len(kinds) - len(begun) - len(ended)) + ended
        first, last = by_index[index][0][1]["item"], by_index[index][-1][1]["item"]
        assert (first["status"], last) == ("in_progress", item)
        deltas = "".join(fields["delta"] for kind, fields in by_index[index] if kind.endswith(".delta"))
        done = by_index[index][len(kinds) - len(ended)][1]
        assert deltas == done["arguments" if is_call else "text"]


def test_an_item_that_is_cut_off_keeps_what_it_has() -> None:
    events: list[str] = []
    output = Output(lambda kind, fields: events.append(kind))
    output.write(MessageReader().parts("One"), [1], [])
    before = len(events)
    assert without_ids(output.cut()) == [
        {
            "type": "message",
            "status": "incomplete",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "One", "annotations": [], "logprobs": []}],
        }
    ]
    assert len(events) == before


def test_tokens_are_found_by_their_text_one_piece_after_the_other() -> None:
    spans = TokenSpans(tokenizer(), skips_special=True)
    ids = tokenizer().encode("Yes: no, Yes and é\U0001f600", add_special_tokens=False)
    spans.add(ids)
    first, second, last = spans.find("Yes"), spans.find("Yes"), spans.find("é\U0001f600")
    assert (list(first), ids[second.start], len(second)) == ([0], ids[ids.index(ids[second.start])], 1)
    assert second.start > first.start
    assert last.stop == len(ids)
    assert (list(spans.find("nowhere")), list(spans.find(""))) == ([], [])
