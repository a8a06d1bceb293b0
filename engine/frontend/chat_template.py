"""Messages to prompt text by the model's chat template, in a sandbox."""

from typing import Any

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.frontend.tokenizer import Tokenizer

Message = dict[str, Any]


class ChatTemplate:
    """Signatures first; the body follows. Messages' content must be text (or None) by then."""

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text. RequestError when the model has no template or the template refuses."""
        raise NotImplementedError

    def encode(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt's token ids: special tokens of the template are special, those spelled in content are text."""
        raise NotImplementedError


def load_chat_template(config: ModelConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The operator's template (a path or the text) or the model's own."""
    raise NotImplementedError
