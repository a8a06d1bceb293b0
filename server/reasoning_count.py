"""ReasoningCount: how many of a choice's tokens are its reasoning."""

from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.server.responses_tokens import TokenSpans


class ReasoningCount:
    """Takes a choice's tokens and what was read of its reasoning, as they come."""

    def __init__(self, tokenizer: Tokenizer, skips_special: bool) -> None:
        self._spans = TokenSpans(tokenizer, skips_special)
        self._texts: list[str] = []

    def add(self, token_ids: list[int], reasoning: str) -> None:
        """The next tokens, and the reasoning that they brought or let out."""
        self._spans.add(token_ids)
        if reasoning:
            self._texts.append(reasoning)

    def total(self) -> int:
        """The count, to be asked for once, when the choice is over; the marks around it do not count."""
        return len(self._spans.find("".join(self._texts)))
