"""One sequence's text, token by token: never half a character."""

import codecs

from vllm_obs.engine.frontend.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns token ids into text as they come; what it gives, joined, is `Tokenizer.decode` of them all.

    A character whose bytes are spread over several tokens comes with its last one. Bytes that cannot begin or
    go on a character become U+FFFD as soon as that is known, an unfinished character at the end in `finish`.
    (A sentencepiece vocabulary's blank in front is kept: generated text goes on from a prompt.)
    """

    __slots__ = ("_characters", "_skip_special_tokens", "_tokenizer", "_whole_texts", "is_between")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._characters = _utf8(errors="replace")
        self._whole_texts = tokenizer.whole_texts
        self.is_between = True
        """Whether no character is begun and not ended."""

    def feed(self, token_id: int) -> str:
        """The characters that this token completes, "" for none."""
        if self.is_between:
            text = self._whole_texts.get(token_id)
            if text is not None:
                return text
        return self._feed_bytes(token_id)

    def _feed_bytes(self, token_id: int) -> str:
        tokenizer, is_special = self._tokenizer, self._tokenizer.is_special(token_id)
        if self._skip_special_tokens and is_special:
            return ""
        token_bytes = tokenizer.token_bytes(token_id)
        text = self._characters.decode(token_bytes)
        was_between, self.is_between = self.is_between, not self._characters.getstate()[0]
        if was_between and not is_special and text.encode() == token_bytes:
            self._whole_texts[token_id] = text
        return text

    def finish(self) -> str:
        """U+FFFD for a character that was begun and not ended, else ""."""
        return self._characters.decode(b"", final=True)
