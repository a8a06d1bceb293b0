"""What a body may hold is bounded before it costs much: values, lists, free objects, texts in texts."""

import asyncio
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.server import json_document
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.errors import ApiError
from vllm_obs.server.json_document import MAX_CONTAINERS, MAX_VALUES, parse_inner, parse_object
from vllm_obs.server.profile_config import ProfilerConfig
from vllm_obs.server.schema_base import MAX_FREE_CHARS, MAX_FREE_VALUES, check_size


@pytest.mark.parametrize("content", [b"1," * MAX_VALUES + b"1", b"[]," * MAX_CONTAINERS + b"1"])
def test_more_values_than_may_be_are_not_read(content: bytes) -> None:
    with pytest.raises(ApiError, match="holds more than") as refusal:
        parse_object(b'{"x":[' + content + b"]}", 64)
    assert (refusal.value.status, refusal.value.reason) == (413, "too_large")


def test_a_large_body_with_a_fault_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "_parse_leniently", None)
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_object(b'{"x":"' + b"a" * (1 << 20) + b'","n":NaN}', 64)


@pytest.mark.parametrize(
    "value", [["x"] * (MAX_FREE_VALUES + 1), {"a": "x" * (MAX_FREE_CHARS + 1)}, {"x" * (MAX_FREE_CHARS + 1): 1}]
)
def test_a_free_object_has_a_size(value: Any) -> None:
    with pytest.raises(ValueError, match="should hold at most"):
        check_size(value)
    assert check_size({"a": [1, {"b": "c"}]}) == {"a": [1, {"b": "c"}]}


@pytest.mark.parametrize("text", ["{", "[" * 1000 + "]" * 1000, "[" * 66 + "]" * 66])
def test_json_in_a_text_is_held_to_the_depth_of_a_body(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_inner(text, 64)
    assert [parse_inner(fine, 64) for fine in ("7", "null", '{"a":[1]}')] == [7, None, {"a": [1]}]


def test_names_that_a_client_chose_are_told_once() -> None:
    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [2])) as app:
            metadata = {f"{number}-" + "k" * 60: 1 for number in range(16)}
            return await app.post("/v1/responses", {"model": "x", "input": "Hi", "metadata": metadata})

    message = asyncio.run(scenario()).json()["error"]["message"]
    assert message.count("k" * 60) == 1


@pytest.mark.parametrize(
    ("origin", "status"), [("http://test", 403), ("null", 403), ("https://ours.example", 200)]
)
def test_pages_give_no_orders_unless_they_were_named(origin: str, status: int, tmp_path: Any) -> None:
    engine = FakeEngine(lambda request: [1])
    engine.utility_answers["is_profiling"] = False
    server = ServerConfig(allowed_origins=("*", "https://ours.example"), profiler_config=ProfilerConfig(True))

    async def scenario() -> int:
        async with served(engine, server, run_dir=tmp_path) as app:
            answered = (await app.client.post("/start_profile", headers={"origin": origin})).status_code
            await app.api.profiles.close()
            return answered

    assert asyncio.run(scenario()) == status
