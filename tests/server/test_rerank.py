"""/score and /rerank over a fake engine: cosines of vectors, pairs, order, and what is refused."""

from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, fake_vector
from http_app import MODEL, served, tokenizer
from in_loop import in_loop

TEXTS = ["Paris is in France", "A cat sleeps", "The sea is blue"]
QUERY = "Where is Paris?"


def cosine(first: str, second: str) -> float:
    left, right = (fake_vector(tokenizer().encode(text)).astype(np.float64) for text in (first, second))
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def num_tokens(*texts: str) -> int:
    return sum(len(tokenizer().encode(text)) for text in texts)


async def ask(path: str, fields: dict[str, Any]) -> Any:
    async with served(FakeEngine(lambda request: [0])) as app:
        reply = await app.post(path, fields)
        assert reply.status_code == 200, reply.text
        return reply.json()


async def refused(path: str, fields: dict[str, Any]) -> tuple[Any, ...]:
    core = FakeEngine(lambda request: [0])
    async with served(core) as app:
        reply = await app.post(path, fields)
        error = reply.json()["error"]
        assert core.added == []
        return reply.status_code, error["reason"], error["param"]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@in_loop
async def test_one_text_is_scored_with_all_the_others(path: str) -> None:
    body = await ask(path, {"model": MODEL, "text_1": QUERY, "text_2": TEXTS})
    total = num_tokens(QUERY, *TEXTS)
    assert body.pop("id").startswith("score-")
    assert body.pop("created") > 0
    assert body == {
        "object": "list",
        "model": MODEL,
        "data": [
            {"index": index, "object": "score", "score": pytest.approx(cosine(QUERY, text), abs=1e-6)}
            for index, text in enumerate(TEXTS)
        ],
        "usage": {
            "prompt_tokens": total,
            "total_tokens": total,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents")])
@in_loop
async def test_as_many_texts_on_each_side_are_pairs_under_every_name_of_the_fields(names: tuple[str, str]) -> None:
    first, second = TEXTS, list(reversed(TEXTS))
    body = await ask("/score", {names[0]: first, names[1]: second})
    expected = [cosine(*pair) for pair in zip(first, second, strict=True)]
    assert [row["score"] for row in body["data"]] == pytest.approx(expected, abs=1e-6)
    assert body["data"][1]["score"] == pytest.approx(1.0)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@in_loop
async def test_documents_come_back_the_most_alike_first(path: str) -> None:
    body = await ask(path, {"model": MODEL, "query": QUERY, "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]})
    scores = [cosine(QUERY, text) for text in TEXTS]
    order = sorted(range(3), key=lambda index: -scores[index])
    assert body.pop("id").startswith("rerank-")
    assert body.pop("usage")["total_tokens"] == num_tokens(QUERY, *TEXTS)
    assert body == {
        "model": MODEL,
        "results": [
            {
                "index": index,
                "document": {"text": TEXTS[index]},
                "relevance_score": pytest.approx(scores[index], abs=1e-6),
            }
            for index in order
        ],
    }


@in_loop
async def test_only_the_best_are_told_and_documents_may_be_left_out() -> None:
    fields = {"query": QUERY, "documents": TEXTS, "top_n": 2, "return_documents": False}
    results = (await ask("/rerank", fields))["results"]
    assert [sorted(result) for result in results] == [["index", "relevance_score"]] * 2
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert len((await ask("/rerank", fields | {"top_n": 10}))["results"]) == 3
    assert len((await ask("/rerank", fields | {"top_n": 0}))["results"]) == 3


@pytest.mark.parametrize(
    ("path", "fields", "reason", "param"),
    [
        ("/score", {"text_1": "a"}, "invalid_value", "text_2"),
        ("/score", {"text_1": "", "text_2": "a"}, "empty_prompt", "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "empty_prompt", "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "invalid_value", "text_1"),
        ("/score", {"text_1": "a", "text_2": [1]}, "invalid_value", "text_2"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2049}, "too_many_sequences", "text_2"),
        ("/rerank", {"documents": ["a"]}, "invalid_value", "query"),
        ("/rerank", {"query": "", "documents": ["a"]}, "empty_prompt", "query"),
        ("/rerank", {"query": "a", "documents": []}, "empty_prompt", "documents"),
        ("/rerank", {"query": "a", "documents": "b"}, "invalid_value", "documents"),
        ("/rerank", {"query": "a", "documents": [{"image": "b"}]}, "invalid_value", "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "invalid_value", "top_n"),
    ],
)
@in_loop
async def test_what_makes_no_pairs_is_a_400_that_names_the_field(
    path: str, fields: dict[str, Any], reason: str, param: str
) -> None:
    assert await refused(path, fields) == (400, reason, param)
