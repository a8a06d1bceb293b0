"""Token counts of a reply: prompts once each, completions of all their sequences."""

from typing import Any

from vllm_obs.engine.frontend.outputs import SequenceDelta


class Usage:
    """Counts over the choices of one request, kept up to date delta by delta."""

    def __init__(self, num_sequences: int, with_details: bool) -> None:
        self._n = num_sequences
        self._with_details = with_details
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens: dict[int, int] = {}
        self._reasoning_tokens: dict[int, int] = {}

    def add(self, number: int, delta: SequenceDelta) -> None:
        """Take in the totals that a delta of choice `number` carries."""
        if number % self._n == 0:
            self._cached_tokens[number // self._n] = delta.num_cached_tokens
        self._prompt_tokens[number // self._n] = delta.num_prompt_tokens
        self._completion_tokens[number] = delta.num_output_tokens

    def add_reasoning(self, number: int, num_tokens: int) -> None:
        """How many of the tokens of choice `number` are its reasoning; told where this is known of any."""
        self._reasoning_tokens[number] = num_tokens

    def for_chunk(self) -> dict[str, Any]:
        """The object of a stream."""
        prompt = sum(self._prompt_tokens.values())
        completion = sum(self._completion_tokens.values())
        counts: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self._with_details:
            counts["prompt_tokens_details"] = {"cached_tokens": sum(self._cached_tokens.values())}
        if self._reasoning_tokens:
            counts["completion_tokens_details"] = {"reasoning_tokens": sum(self._reasoning_tokens.values())}
        return counts

    def for_reply(self) -> dict[str, Any]:
        """The object of a whole reply, where fields without a value are null."""
        counts = self.for_chunk()
        counts.setdefault("prompt_tokens_details", None)
        counts.setdefault("completion_tokens_details", None)
        return counts
