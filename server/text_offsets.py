"""TextOffsets: where in the text of a choice each of its tokens begins."""

from itertools import accumulate

from vllm_obs.engine.frontend.detokenizer import Detokenizer
from vllm_obs.engine.frontend.tokenizer import Tokenizer


class TextOffsets:
    """Takes a choice's tokens as they come, however many at once, and counts the characters of its text.

    A token that goes on with a character begins where that character does; one that is not shown, where the text
    after it does. Text that a stop string cut off counts as if it were there.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        self._num_chars = 0

    def of_prompt(self, token_ids: list[int], echo: str, skips_special_tokens: bool) -> list[int]:
        """The places of a prompt's tokens in its text `echo`, which the choice begins with.

        They are counted from its end: what a tokenizer adds (a first token, a blank) it puts in front.
        """
        detokenizer = Detokenizer(self._tokenizer, skips_special_tokens)
        lengths = [len(detokenizer.feed(token_id)) for token_id in token_ids]
        self._num_chars = len(echo)
        begin = len(echo) - sum(lengths) - len(detokenizer.finish())
        return [max(0, offset) for offset in accumulate(lengths[:-1], initial=begin)]

    def of(self, token_ids: list[int]) -> list[int]:
        """The places of the next tokens."""
        lengths = (len(self._detokenizer.feed(token_id)) for token_id in token_ids)
        *offsets, self._num_chars = accumulate(lengths, initial=self._num_chars)
        return offsets
