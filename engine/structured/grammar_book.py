"""GrammarBook: the grammars of a core's sequences and the masks of each step."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.request import Grammar, Request

if TYPE_CHECKING:
    from vllm_obs.engine.structured.compiler import GrammarCompiler


ANY_TOKEN = -1
"""A word of a mask that allows them all."""


def _nobody() -> None:
    """Told of a grammar that nobody waits for."""


class GrammarBook:
    """Made once a core. Without `prepare` nothing is loaded, and no thread started, before a grammar comes."""

    def __init__(self, model: ModelConfig) -> None:
        self.on_ready: Callable[[], None] = _nobody
        """Called from any thread when a grammar is compiled."""
        self._model = model
        self._num_words = -(-model.architecture.vocab_size // 32)
        self._compiler: GrammarCompiler | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._failed: list[tuple[str, Exception]] = []

    def prepare(self) -> Future[None]:
        """Begin to make what every grammar needs, in a thread; done when it is made."""
        if self._compiler is None:
            self._compiler = self._make_compiler()
        return self._compiler.prepare()

    def order(self, grammar: str) -> Grammar:
        """Have a grammar compiled, if it is not yet; where a sequence stands in it."""
        from vllm_obs.engine.structured.grammar_state import GrammarState

        if self._compiler is None:
            self._compiler = self._make_compiler()
        compiled = self._compiler.compile(grammar)
        compiled.add_done_callback(lambda _: self.on_ready())
        return GrammarState(compiled)

    def begin_masks(self, requests: Sequence[Request], in_thread: bool = True) -> Future[GrammarMasks]:
        """Begin to make the masks of these sequences, which all have grammars, or make them here and now."""
        if not in_thread:
            made: Future[GrammarMasks] = Future()
            made.set_result(self._masks(list(requests)))
            return made
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar masks")
        return self._thread.submit(self._masks, list(requests))

    def take_failed(self) -> list[tuple[str, Exception]]:
        """Sequences whose masks could not be made since the last call; no mask must be in the making."""
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """End the threads."""
        if self._compiler is not None:
            self._compiler.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _make_compiler(self) -> "GrammarCompiler":
        # Imported here: a tokenizer and a compiler in the engine cost only who uses them.
        from vllm_obs.engine.structured.compiler import GrammarCompiler
        from vllm_obs.engine.structured.token_table import load_token_table

        return GrammarCompiler(lambda: load_token_table(self._model))

    def _masks(self, requests: list[Request]) -> GrammarMasks:
        bitmask = np.zeros((len(requests), self._num_words), np.int32)
        first_address, row_bytes = bitmask.ctypes.data, bitmask.strides[0]
        for row, (request, words) in enumerate(zip(requests, bitmask, strict=True)):
            assert request.grammar is not None
            try:
                maybe_fault("grammar_mask", request.request_id)
                request.grammar.write_mask(words, first_address + row * row_bytes)
            except MemoryError:
                raise
            except Exception as error:
                words[:] = ANY_TOKEN  # which is given to nobody
                self._failed.append((request.request_id, error))
        return GrammarMasks([request.request_id for request in requests], bitmask)
