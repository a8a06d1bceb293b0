"""Several conversations in one request."""

import asyncio
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import served, tokenizer
from in_loop import in_loop

from vllm_obs.server.config import ServerConfig

PATH = "/v1/chat/completions/batch"
HI = [{"role": "user", "content": "Hi"}]
LONGER = [{"role": "user", "content": "Hi there, you"}]


def post(body: dict[str, Any], path: str = PATH) -> httpx.Response:
    """The reply of an engine that answers a conversation with its own last word."""

    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [request.prompt_token_ids[-7], 2])) as app:
            return await app.post(path, body)

    return asyncio.run(scenario())


def test_each_conversation_is_answered_under_its_number() -> None:
    reply = post({"messages": [HI, LONGER], "n": 2, "logprobs": True}).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["Hi", "Hi", " you", " you"]
    alone = [post({"messages": each}, "/v1/chat/completions").json()["usage"] for each in (HI, LONGER)]
    assert reply["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in alone)
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HI}, "messages"),
        ({"messages": [HI, []]}, "messages"),
        ({"messages": [HI], "stream": True}, "stream"),
        ({"messages": [HI], "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": [HI] * 600, "n": 2}, "n"),
        ({"messages": [HI] * 1025}, "messages"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    reply = post(fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


BEGUN, SAID = [*HI, {"role": "assistant", "content": "<think>"}], [*HI, {"role": "assistant", "content": "Well"}]


@pytest.mark.parametrize("is_begun", [(True, False), (False, True), (True, True), (False, False)])
@in_loop
async def test_each_conversation_is_read_by_the_end_of_its_own_prompt(is_begun: tuple[bool, bool]) -> None:
    answer = [*tokenizer().encode("Hm.</think>Yes.", add_special_tokens=False), 2]
    body = {
        "messages": [BEGUN if begun else SAID for begun in is_begun],
        "continue_final_message": True,
        "n": 2,
        "max_tokens": 50,
        "temperature": 1.0,
    }
    async with served(FakeEngine(lambda request: answer), ServerConfig(reasoning_parser="qwen3")) as app:
        reply = await app.post(PATH, body)
        assert reply.status_code == 200, reply.text
    messages = [choice["message"] for choice in reply.json()["choices"]]
    wanted = {True: ("Hm.", "Yes."), False: (None, "Hm.</think>Yes.")}
    assert [(message["reasoning"], message["content"]) for message in messages] == [
        wanted[begun] for begun in is_begun for _ in range(2)
    ]
