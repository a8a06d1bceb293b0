"""Text to token ids and back, for the tokenizers of the model families served here."""

from vllm_obs.engine.config import ModelConfig


class Tokenizer:
    """Signatures first; the body follows.

    `vocab_size` is the number of ids; `eos_token_ids`, `bos_token_id` are the model's; `bos_token`, `eos_token`
    their text or ""; `chat_template` is the model's own template or None.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    chat_template: str | None
    max_chars_per_token: int

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw prompt: text that spells a special token becomes that token (as HF and vLLM do)."""
        raise NotImplementedError

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that are no character become U+FFFD. RequestError for an unknown id."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for (special tokens: their spelling)."""
        raise NotImplementedError

    def token_str(self, token_id: int) -> str:
        """One token's text alone, U+FFFD for half a character."""
        raise NotImplementedError

    def is_special(self, token_id: int) -> bool:
        """Whether skip_special_tokens leaves it out."""
        raise NotImplementedError


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The model's tokenizer (a .gguf file or a directory with tokenizer.json). ConfigError when there is none."""
    raise NotImplementedError
