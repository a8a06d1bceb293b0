"""An error about a number names the field that the client sent and the limit, in the same words everywhere."""

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served

HI = {"messages": [{"role": "user", "content": "hi"}]}
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"


def refusal(path: str, fields: dict[str, Any]) -> tuple[str, str]:
    """The message and the param of the 400 that these fields get."""
    prompt = {TEXT: {"prompt": "hi"}, RESPONSES: {"input": "hi"}}.get(path, HI)

    async def scenario() -> tuple[str, str]:
        async with served(FakeEngine(lambda request: [2])) as app:
            reply = await app.client.post(path, json={"model": MODEL, **prompt, **fields})
            assert reply.status_code == 400
            error = reply.json()["error"]
            return error["message"], error["param"]

    return asyncio.run(scenario())


@pytest.mark.parametrize("number", [-1, 0])
@pytest.mark.parametrize(
    ("path", "name", "note"),
    [
        (TEXT, "max_tokens", " without echo"),
        (CHAT, "max_tokens", ""),
        (CHAT, "max_completion_tokens", ""),
        (MESSAGES, "max_tokens", ""),
        (RESPONSES, "max_output_tokens", ""),
    ],
)
def test_too_few_tokens_are_refused_in_the_same_words(path: str, name: str, note: str, number: int) -> None:
    assert refusal(path, {name: number}) == (f"{name} must be at least 1{note}, got {number}.", name)


def test_with_echo_none_are_enough() -> None:
    message = "max_tokens must be at least 0 with echo, got -1."
    assert refusal(TEXT, {"max_tokens": -1, "echo": True}) == (message, "max_tokens")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (TEXT, "max_tokens"),
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (f"{CHAT}/batch", "max_completion_tokens"),
        (MESSAGES, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
    ],
)
def test_too_many_tokens_are_refused_under_the_name_they_were_asked_for_by(path: str, name: str) -> None:
    fields = {name: 10**9, **({"messages": [HI["messages"]]} if path.endswith("batch") else {})}
    assert refusal(path, fields) == (f"{name} must be at most 2048, got 1000000000.", name)


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [(CHAT, "top_logprobs", {"logprobs": True}), (TEXT, "logprobs", {}), (RESPONSES, "top_logprobs", {})],
)
@pytest.mark.parametrize(("number", "bound"), [(-1, "at least 0"), (9999, "at most 20")])
def test_alternatives_out_of_bounds_are_said_of_what_was_sent(
    path: str, name: str, fields: dict[str, Any], number: int, bound: str
) -> None:
    assert refusal(path, {**fields, name: number}) == (f"{name} must be {bound}, got {number}.", name)
