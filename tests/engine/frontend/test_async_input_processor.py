"""AsyncInputProcessor: long prompts in a thread, short ones at once, and those that cannot fit not at all."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from default_model import default_config, default_model_config, default_tokenizer

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.async_input_processor import AsyncInputProcessor
from vllm_obs.engine.frontend.chat_template import load_chat_template


@pytest.fixture
def inputs() -> Iterator[AsyncInputProcessor]:
    inputs = AsyncInputProcessor(default_config(), default_tokenizer())
    yield inputs
    inputs.close()


def test_long_texts_are_tokenised_in_a_thread(
    inputs: AsyncInputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    tokenizer = default_tokenizer()
    encode = tokenizer.encode

    def spy(text: str, add_special_tokens: bool = True) -> list[int]:
        seen.append(threading.current_thread().name)
        return encode(text, add_special_tokens)

    async def play() -> None:
        template = load_chat_template(default_model_config(), tokenizer)
        for text in ("short", "long " * 1000):
            assert await inputs.encode(text) == encode(text)
            messages = [{"role": "user", "content": text}]
            assert (await inputs.encode_chat(template, messages)).token_ids == template.encode(messages)

    monkeypatch.setattr(tokenizer, "encode", spy)
    asyncio.run(play())
    assert [name.startswith("tokenizer_") for name in seen] == [False, False, False, True, True, False]
    assert seen[0] == threading.main_thread().name


def test_options_of_a_template_may_have_any_name(inputs: AsyncInputProcessor) -> None:
    template = load_chat_template(default_model_config(), default_tokenizer())
    options = {"self": 1, "template": 1, "messages": 1}
    messages = [{"role": "user", "content": "hi"}]
    encoded = asyncio.run(inputs.encode_chat(template, messages, **options))
    assert encoded.token_ids == template.encode(messages)


def test_texts_that_cannot_fit_are_refused_at_once(inputs: AsyncInputProcessor) -> None:
    template = load_chat_template(default_model_config(), default_tokenizer())
    for refused in (
        inputs.encode("a" * 1_000_000),
        inputs.encode_chat(template, [{"role": "user", "content": "a" * 1_000_000}]),
    ):
        with pytest.raises(RequestError) as caught:
            asyncio.run(refused)
        assert caught.value.reason == "context_length_exceeded"
