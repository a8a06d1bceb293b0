"""A grammar whose mask cannot be made fails its own sequence, and the masks of the others are theirs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_executor import make_request, tiny_config

from vllm_obs.engine.request import Request
from vllm_obs.engine.structured.grammar_book import GrammarBook


class Pattern:
    """Allows the tokens of one word of bits, or cannot say which."""

    is_ready = True
    is_over = False

    def __init__(self, word: int, error: Exception | None = None) -> None:
        self._word = word
        self._error = error

    def begin(self) -> None:
        pass

    def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
        if self._error is not None:
            raise self._error
        words[:] = self._word

    def accept(self, token_id: int) -> None:
        pass


def bound(name: str, **pattern: Any) -> Request:
    return Request(make_request(name, [1, 2]), (0, 0), 64, Pattern(**pattern))


def test_a_mask_that_cannot_be_made_fails_its_sequence_alone() -> None:
    book = GrammarBook(tiny_config().model)
    broken = bound("broken", word=0, error=RuntimeError("planted"))
    requests = [bound("one", word=1), broken, bound("other", word=6)]
    masks = book.begin_masks(requests, in_thread=False).result()
    assert masks.request_ids == ["one", "broken", "other"]
    assert masks.bitmask[:, 0].tolist() == [1, -1, 6]
    ((failed, error),) = book.take_failed()
    assert (failed, str(error)) == ("broken", "planted")
    assert book.take_failed() == []


def test_no_memory_for_a_mask_is_nobody_s_fault() -> None:
    book = GrammarBook(tiny_config().model)
    with pytest.raises(MemoryError):
        book.begin_masks([bound("one", word=0, error=MemoryError())], in_thread=False).result()
