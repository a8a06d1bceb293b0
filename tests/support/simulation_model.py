"""The simulation's model: the next token is a hash of all before it, so what a sequence gives alone is known."""

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.sampling_params import SamplingParams

NUM_TOKENS = 1000
NUM_EOS = 40
"""So many of the tokens end a sequence that has not said ignore_eos."""


Int64Array = npt.NDArray[np.int64]


def cells_of(token_ids: Int64Array, positions: Int64Array) -> Int64Array:
    """What the paged cache holds of each token at its position; never 0, which is an empty cell."""
    return token_ids * 65_536 + positions + 1


def beginning(seed: int, sequence_index: int) -> int:
    """The hash before a sequence's first cell: its row of the sampler's columns is in it."""
    return zlib.crc32(f"{seed}/{sequence_index}".encode())


def hashed(cells: Int64Array, before: int) -> int:
    """The hash after these cells."""
    return zlib.crc32(np.ascontiguousarray(cells).data, before)


def chosen(digest: int, words: npt.NDArray[np.int32] | None) -> int:
    """The token of a hash, or the one below it where a mask has only that."""
    token = digest % NUM_TOKENS
    if words is None or int(words[token // 32]) >> (token % 32) & 1:
        return token
    return token ^ 1


def mask_word(length: int) -> int:
    """A word of the mask of a grammar of that length: it allows even tokens, or odd ones if its length is odd."""
    return -0x55555556 if length % 2 else 0x55555555


def spelled(token_id: int) -> str:
    """The one character a token is."""
    return chr(97 + token_id % 26)


class LetterTokenizer:
    """As much of a Tokenizer as an OutputProcessor needs: a token is a letter."""

    eos_token_ids = tuple(range(NUM_EOS))

    def __init__(self) -> None:
        self.whole_texts: dict[int, str] = {}

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return spelled(token_id).encode()


@dataclass(frozen=True)
class Reply:
    """What a client gets of one sequence; `finish_reason` is empty as long as it has not ended."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str = ""
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class Alone:
    """One sequence as if nobody else were there. `num_grammar_tokens` is the length of its grammar, 0 for none."""

    prompt: tuple[int, ...]
    params: SamplingParams
    index: int
    eos_token_ids: tuple[int, ...]
    num_grammar_tokens: int
    max_model_len: int

    def reply(self) -> Reply:
        """All of it, to its end."""
        limit = min(self.params.max_tokens or 0, self.max_model_len - len(self.prompt))
        if not limit:
            return Reply(finish_reason="length")
        prompt = np.array(self.prompt, np.int64)
        digest = hashed(cells_of(prompt, np.arange(len(prompt))), beginning(self.params.seed or 0, self.index))
        word, num_words = mask_word(self.num_grammar_tokens), NUM_TOKENS // 32 + 1
        words = np.full(num_words, word, np.int32) if self.num_grammar_tokens else None
        token_ids: list[int] = []
        text = ""
        while True:
            token = chosen(digest, words)
            token_ids.append(token)
            if (ended := self._ended_by_token(token, len(token_ids))) is not None:
                return Reply(tuple(token_ids), text, *ended)
            text += spelled(token)
            if (stop := self._stop_string(text, len(token_ids))) is not None:
                return Reply(tuple(token_ids), text.removesuffix(stop), "stop", stop)
            if (reason := self._ended_by_length(len(token_ids), limit)) is not None:
                return Reply(tuple(token_ids), text, reason)
            place = np.array([len(self.prompt) + len(token_ids) - 1])
            digest = hashed(cells_of(np.array([token], np.int64), place), digest)

    def _ended_by_token(self, token: int, num_outputs: int) -> tuple[str, int | None] | None:
        if num_outputs < self.params.min_tokens:
            return None
        if token in self.eos_token_ids:
            return "stop", None
        return ("stop", token) if token in (self.params.stop_token_ids or ()) else None

    def _stop_string(self, text: str, num_outputs: int) -> str | None:
        if num_outputs <= self.params.min_tokens:
            return None
        found = [stop for stop in self.params.stop_strings if text.endswith(stop)]
        return max(found, key=len, default=None)

    def _ended_by_length(self, num_outputs: int, limit: int) -> str | None:
        if num_outputs >= limit:
            return "length"
        is_over = num_outputs >= self.num_grammar_tokens > 0
        return "stop" if is_over and not self.eos_token_ids else None
