"""AsyncInputProcessor: checks and tokenises prompts for an event loop, which long ones are kept off."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.chat_template import ChatTemplate, EncodedChat, Message
from vllm_obs.engine.frontend.content_form import joined_text
from vllm_obs.engine.frontend.input_processor import (
    LONG_TEXT_CHARS,
    InputProcessor,
    PreparedPrompt,
    Prompt,
    make_limits,
)
from vllm_obs.engine.frontend.poison_book import fingerprint
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm_obs.engine.frontend.grammar_check import GrammarCheck

T = TypeVar("T")

_NUM_THREADS = 2


class AsyncInputProcessor:
    """An InputProcessor for coroutines, with threads of its own. It takes what any of the engines can take."""

    def __init__(self, config: VllmConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._inputs = InputProcessor(tokenizer, make_limits(config, tokenizer, None))
        self._grammar_check: GrammarCheck | None = None
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")

    async def prepare_grammars(self, timeout_seconds: float) -> None:
        """Make what every grammar needs before there are streams: it would hold them up for tenths of a second.

        Nothing is raised: whatever goes wrong is told to who comes with a grammar.
        """
        if self._config.model.has_grammars:
            self._grammar_check = await asyncio.to_thread(lambda: self._inputs.grammar_check)
            await asyncio.to_thread(wait, [self._grammar_check.prepare()], timeout_seconds)

    def fit(self, engines: Iterable[EngineFacts]) -> None:
        """Take from now on what any of these engines can take."""
        smallest = min(engines, key=lambda facts: facts.kv_cache_size_tokens)
        limits = make_limits(self._config, self._tokenizer, smallest)
        self._inputs = InputProcessor(self._tokenizer, limits, smallest.kv_cache_size_tokens, self._grammar_check)

    async def prepare(self, prompt: Prompt, params: SamplingParams, arrival: Arrival) -> PreparedPrompt:
        """`InputProcessor.prepare`, with what it raises."""
        prepare = partial(self._inputs.prepare, prompt, params, arrival)
        return await self._in_thread(prepare) if self._inputs.is_long(prompt, params) else prepare()

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw prompt. RequestError when it cannot fit the context."""
        encode = partial(self._inputs.encode, text, add_special_tokens)
        return await self._in_thread(encode) if len(text) > LONG_TEXT_CHARS else encode()

    def check_num_chars(self, num_chars: int) -> None:
        """RequestError for texts of a prompt that are so long in all that they cannot fit the context."""
        self._inputs.check_num_chars(num_chars)

    def check_generates(self) -> None:
        """RequestError where the model makes no text."""
        self._inputs.check_generates()

    async def encode_chat(self, template: ChatTemplate, messages: list[Message], /, **options: Any) -> EncodedChat:
        """`ChatTemplate.encode_timed`. RequestError when it cannot fit the context."""
        documents = options.get("documents", ())
        contents = (joined_text(message.get("content")) for message in messages)
        num_chars = sum(len(content) for content in contents if content is not None)
        num_chars += sum(map(len, chain.from_iterable(chain(item, item.values()) for item in documents)))
        self._inputs.check_num_chars(num_chars)
        encode = partial(template.encode_timed, messages, **options)
        is_long = num_chars > LONG_TEXT_CHARS or len(messages) > 32 or bool(options.get("tools"))
        is_long = is_long or any("tool_calls" in message or "reasoning" in message for message in messages)
        return await self._in_thread(encode) if is_long else encode()

    async def fingerprint(self, token_ids: list[int], params: SamplingParams) -> bytes:
        """What the poison book knows a request by, made in a thread: it takes milliseconds for a long one."""
        return await self._in_thread(partial(fingerprint, token_ids, params))

    def close(self) -> None:
        """End the threads once they have done what they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
