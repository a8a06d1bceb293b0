"""TokenSpans: which tokens of a sequence made a piece of its text, found by its characters."""

import codecs
from bisect import bisect_left, bisect_right

from vllm_obs.engine.frontend.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")
_REPLACED = "\ufffd"


class TokenSpans:
    """Takes tokens as they come; pieces are asked for in the order in which they stand in the text.

    Bytes that make no character are U+FFFD, and special tokens left out, as they are in the text.
    """

    def __init__(self, tokenizer: Tokenizer, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._characters = _utf8(errors="replace")
        self._pieces: list[str] = []
        self._num_chars = 0
        self._is_between = True
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._searched = 0

    def add(self, token_ids: list[int]) -> None:
        """The next tokens."""
        for token_id in token_ids:
            text = self._characters.decode(self._bytes_of(token_id))
            # Where another token's character came to nothing by this one, that is none of this one's.
            is_behind = not self._is_between and text.startswith(_REPLACED)
            self._starts.append(self._num_chars + is_behind)
            self._pieces.append(text)
            self._num_chars += len(text)
            self._is_between = not self._characters.getstate()[0]
            self._ends.append(self._num_chars + (not self._is_between))

    def find(self, piece: str) -> range:
        """The positions of the tokens that hold some of it; none where it is not as the tokens have it."""
        begin = self._whole().find(piece, self._searched) if piece else -1
        if begin < 0:
            return range(0)
        self._searched = begin + len(piece)
        return range(bisect_right(self._ends, begin), bisect_left(self._starts, self._searched))

    def _bytes_of(self, token_id: int) -> bytes:
        is_left_out = self._skips_special and self._tokenizer.is_special(token_id)
        return b"" if is_left_out else self._tokenizer.token_bytes(token_id)

    def _whole(self) -> str:
        """All characters; one that is begun and not ended is U+FFFD, as it is where the text ends there."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0] + ("" if self._is_between else _REPLACED)
