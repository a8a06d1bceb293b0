"""What a tokenizer's tokens are: their bytes, which are special, and the model's own template."""

import re
from dataclasses import dataclass
from typing import Literal

Spelling = Literal["byte_level", "metaspace", "wordpiece"]
"""How token strings stand for bytes: GPT-2's printable stand-ins, sentencepiece's `▁` and `<0x41>`, or BERT's `##`
before what goes on with a word.
"""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
_NO_BYTE = 256
_BYTE_OF_CODE = dict.fromkeys(range(256), _NO_BYTE) | {ord(char): byte for char, byte in _BYTE_OF_CHAR.items()}
"""The same by code point, for `str.translate`; other characters become, or are, none that Latin-1 can write."""


@dataclass(frozen=True)
class Vocabulary:
    """The facts of a tokenizer beside its splitting and merging.

    `special` maps the spelling of each special token to its id. `verbatim_ids` are tokens that stand for their own
    spelling (all added ones). `prepend_bos` is set where the back end does not add the first token itself.
    """

    spelling: Spelling
    special: dict[str, int]
    verbatim_ids: frozenset[int]
    bos_token: str = ""
    eos_token: str = ""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prepend_bos: bool = False
    chat_template: str | None = None

    def spell(self, token_id: int, token: str) -> bytes:
        """The bytes that a token stands for in the middle of a text."""
        if token_id in self.verbatim_ids:
            return token.encode("utf-8", "replace")
        if self.spelling == "byte_level":
            try:
                return token.translate(_BYTE_OF_CODE).encode("latin-1")
            except UnicodeEncodeError:
                return token.encode("utf-8", "replace")
        if self.spelling == "wordpiece":
            return (token.removeprefix("##") if token.startswith("##") else " " + token).encode("utf-8", "replace")
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return token.replace("▁", " ").encode("utf-8", "replace")
