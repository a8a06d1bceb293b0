"""What a request would run is told, and nothing runs."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import MODEL, model_config, served, tokenizer

from vllm_obs.engine.frontend.chat_template import ChatTemplate
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.state import Engine

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
WITH_DOCUMENTS = (
    "{% for document in documents %}[{{ document.title }}: {{ document.text }}]{% endfor %}"
    "{% for message in messages %}{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
)


def post(
    path: str, body: dict[str, Any], server: ServerConfig | None = None, template: str | None = None
) -> httpx.Response:
    """The reply to one request; nothing may have reached the engine by a path that renders."""

    async def scenario() -> httpx.Response:
        engine = FakeEngine(lambda request: [504, 2])
        async with served(engine, server) as app:
            if template is not None:
                there = app.api.engine
                chat_template = ChatTemplate(template, there.tokenizer)
                app.api.engine_ready(Engine(there.llm, there.tokenizer, chat_template, there.facts, there.client))
            reply = await app.post(path, body, **{"x-request-id": "abc"})
            assert engine.added == [] or not path.endswith("/render")
            return reply

    return asyncio.run(scenario())


def test_rendered_chat_is_the_prompt_that_would_run() -> None:
    rendered = post(CHAT + "/render", {"messages": MESSAGES, "logit_bias": {"5": 1.0}, "seed": 7}).json()
    ids = post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    assert rendered["token_ids"] == ids
    assert rendered["prompt"].endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer().encode(rendered["prompt"], add_special_tokens=False) == ids
    assert (rendered["request_id"], rendered["model"]) == ("chatcmpl-abc", MODEL)
    sampling = rendered["sampling_params"]
    assert (sampling["max_tokens"], sampling["seed"], sampling["logit_bias"]) == (2048 - len(ids), 7, {"5": 1.0})


def test_rendered_completion_is_a_list_of_its_prompts() -> None:
    body = {"prompt": [[504, 3575, 282], [30]], "truncate_prompt_tokens": 2, "max_tokens": 3}
    rendered = post(TEXT + "/render", body).json()
    assert [(each["prompt"], each["token_ids"]) for each in rendered] == [
        (" capital of", [3575, 282]),
        (".", [30]),
    ]
    assert [each["request_id"] for each in rendered] == ["cmpl-abc-0", "cmpl-abc-1"]
    assert rendered[0]["sampling_params"]["max_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": [49_152]}, "prompt"),
        (TEXT, {"prompt": "Hi", "temperature": -1}, "temperature"),
        (TEXT, {"prompt": [504] * 2048}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
        (CHAT, {"messages": MESSAGES, "top_p": 2}, "top_p"),
    ],
)
def test_what_could_not_run_is_refused_as_it_would_be(path: str, body: dict[str, Any], param: str) -> None:
    rendered, run = post(path + "/render", body), post(path, body)
    assert (rendered.status_code, rendered.json()["error"]["param"]) == (400, param)
    assert rendered.json() == run.json()


def test_documents_and_parts_reach_a_template_that_takes_them() -> None:
    documents = [{"title": "A", "text": "one"}, {"title": "B", "text": "two"}]
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    body = {"messages": [{"role": "user", "content": parts}], "documents": documents}
    assert post(CHAT + "/render", body, None, WITH_DOCUMENTS).json()["prompt"] == "[A: one][B: two]<x><y>"
    as_text = ServerConfig(chat_template_content_format="string")
    assert post(CHAT + "/render", body, as_text, "{{ messages[0].content }}").json()["prompt"] == "x\ny"
    as_parts = ServerConfig(chat_template_content_format="openai")
    plain = {"messages": MESSAGES}
    assert post(CHAT + "/render", plain, as_parts, WITH_DOCUMENTS).json()["prompt"] == "<Hi>"


@pytest.mark.parametrize("documents", ["text", [1], [{"title": 1}], [{}] * 1025])
def test_documents_are_objects_of_texts(documents: Any) -> None:
    reply = post(CHAT, {"messages": MESSAGES, "documents": documents})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "documents")
    assert post(TEXT, {"prompt": "Hi", "documents": [{"a": "b"}]}).json()["error"]["reason"] == "unsupported"


def test_conversation_in_parts_goes_on_after_its_last_text() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "Well, "}]}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert post(CHAT + "/render", body, None, WITH_DOCUMENTS).json()["prompt"] == "<Hi><Well, "


def test_tokens_are_named_by_their_ids_where_the_server_says_so() -> None:
    server = ServerConfig(return_tokens_as_token_ids=True)
    content = post(CHAT, {"messages": MESSAGES, "logprobs": True}, server).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert [token["token"] for token in content] == ["token_id:504", "token_id:2"]


def test_request_id_headers_can_be_switched_off() -> None:
    assert post(TEXT, {"prompt": "Hi"}).headers["x-request-id"] == "abc"
    assert (
        "x-request-id" not in post(TEXT, {"prompt": "Hi"}, ServerConfig(enable_request_id_headers=False)).headers
    )


def test_log_quotes_as_much_of_a_label_as_it_may(caplog: pytest.LogCaptureFixture) -> None:
    observability = replace(model_config().observability, enable_log_requests=True)

    async def scenario() -> None:
        config = replace(model_config(), observability=observability)
        async with served(FakeEngine(lambda request: [2]), ServerConfig(max_log_len=2), config=config) as app:
            await app.post(TEXT, {"prompt": "Hi"}, **{"x-request-id": "abcdef"})

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert "(ab)" in caplog.text
    assert "abc" not in caplog.text
