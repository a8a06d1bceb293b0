"""Text to token ids and back, for the tokenizers of the model families served here."""

import contextlib
import os
import re

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when tokenizers starts; one text needs one thread

import tokenizers as hf

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.errors import ConfigError, RequestError
from vllm_obs.engine.frontend.gguf_tokenizer import read_gguf_tokenizer
from vllm_obs.engine.frontend.hf_tokenizer import read_hf_tokenizer
from vllm_obs.engine.frontend.vocabulary import Vocabulary
from vllm_obs.engine.model.reading import reading
from vllm_obs.engine.sampling_checks import check_token_ids


class Tokenizer:
    """One model's tokenizer. `vocab_size` is the number of ids; `chat_template` the model's own, or None.

    Text that spells a special token *is* that token in a raw prompt (`encode`), as with vLLM and Hugging Face;
    `encode_marked` keeps apart what a chat template wrote from what users wrote. Safe to use from several threads.
    """

    def __init__(self, backend: hf.Tokenizer, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._plain = _without_special_tokens(backend)
        self._bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}
        """What is known to be whole characters by itself, special tokens left out; by id."""
        self._special_ids = frozenset(vocabulary.special.values())
        self.special_pattern = _alternation(vocabulary.special)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token = vocabulary.bos_token
        self.eos_token = vocabulary.eos_token
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.chat_template = vocabulary.chat_template
        self.max_chars_per_token = _longest_token(backend)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw prompt, with the model's first token in front if it wants one.

        Releases the GIL while it works. RequestError (param prompt) for a text that is not Unicode.
        """
        ids = _encode(self._backend, text, add_special_tokens)
        if add_special_tokens and self._vocabulary.prepend_bos and self.bos_token_id is not None:
            return [self.bos_token_id, *ids]
        return ids

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Token ids of a text in which special tokens broken up by `mark` are text; marks count for nothing."""
        ids: list[int] = []
        for position, piece in enumerate(self.special_pattern.split(text)):
            if position % 2:
                ids.append(self._vocabulary.special[piece])
            elif unmarked := piece.replace(mark, ""):
                ids += _encode(self._plain, unmarked, False)
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids, U+FFFD for bytes that make no character. RequestError (param tokens) for a bad id."""
        check_token_ids(token_ids, self.vocab_size, "tokens")
        kept = (i for i in token_ids if not (skip_special_tokens and i in self._special_ids))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text if self._vocabulary.spelling == "byte_level" else text.removeprefix(" ")

    def prepare_texts(self) -> None:
        """Fill `whole_texts`, so that no stream pays for the first of each token. A microsecond a token."""
        texts, spell = self.whole_texts, self._vocabulary.spell
        for token, token_id in self._backend.get_vocab(with_added_tokens=True).items():
            if token_id not in self._special_ids:
                with contextlib.suppress(UnicodeDecodeError):  # part of a character
                    texts[token_id] = spell(token_id, token).decode()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; a special token's are its spelling. Empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id) or ""
            known = self._bytes[token_id] = self._vocabulary.spell(token_id, token)
        return known

    def token_str(self, token_id: int) -> str:
        """One token's text alone; U+FFFD stands for half a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves it out."""
        return token_id in self._special_ids


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The model's tokenizer, from a .gguf file or a directory with tokenizer.json.

    The model's own end-of-sequence ids come first, then the tokenizer's. ConfigError when there is none to read,
    or it is another model's: it has more tokens than the model, those left out that were added to it later.
    """
    read = read_gguf_tokenizer if config.tokenizer.endswith(".gguf") else read_hf_tokenizer
    with reading(config.tokenizer):
        backend, vocabulary = read(config.tokenizer, config.architecture)
        num_tokens, num_rows = backend.get_vocab_size(with_added_tokens=False), config.architecture.vocab_size
        if num_tokens > num_rows:
            raise ConfigError(
                f"{config.tokenizer}: another model's tokenizer: it has {num_tokens} tokens, the model {num_rows}"
            )
        return Tokenizer(backend, vocabulary)


def _without_special_tokens(backend: hf.Tokenizer) -> hf.Tokenizer:
    """The same model (shared, not copied) to which special tokens are plain text."""
    plain = hf.Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    added = backend.get_added_tokens_decoder()
    plain.add_tokens([token for _, token in sorted(added.items()) if not token.special])
    return plain


def _alternation(special: dict[str, int]) -> re.Pattern[str]:
    """Matches any special token, the longest where several begin; one group, for `split`."""
    spellings = sorted(special, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, spellings)) + ")" if spellings else r"(?!)()")


def _longest_token(backend: hf.Tokenizer) -> int:
    """An upper bound of the characters of text that one token can stand for (normalising may shrink text)."""
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
    return longest if backend.normalizer is None else 4 * longest


def _encode(backend: hf.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    if not text.isascii():
        _check_unicode(text)
    # encode() keeps the GIL for the whole text; encode_batch_fast() gives it up.
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"The text holds half a surrogate pair at character {error.start}.", "prompt") from None
