"""TokenSpans: which tokens of a sequence made a piece of its text, found by their bytes."""

from bisect import bisect_left, bisect_right

from vllm_obs.engine.frontend.tokenizer import Tokenizer


class TokenSpans:
    """Takes tokens as they come; pieces are asked for in the order in which they stand in the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = bytearray()
        self._starts: list[int] = []
        self._searched = 0

    def add(self, token_ids: list[int]) -> None:
        """The next tokens."""
        for token_id in token_ids:
            self._starts.append(len(self._text))
            self._text += self._tokenizer.token_bytes(token_id)

    def find(self, piece: str) -> range:
        """The positions of the tokens that hold some of it; none where it is not as the tokens have it."""
        sought = piece.encode()
        begin = self._text.find(sought, self._searched) if sought else -1
        if begin < 0:
            return range(0)
        self._searched = begin + len(sought)
        return range(bisect_right(self._starts, begin) - 1, bisect_left(self._starts, self._searched))
