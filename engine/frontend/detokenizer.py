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

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._characters = _utf8(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes, "" for none."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._characters.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """U+FFFD for a character that was begun and not ended, else ""."""
        return self._characters.decode(b"", final=True)
