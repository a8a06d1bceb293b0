"""SequenceGroups: which sequences belong to one prompt, until the last of them has ended."""

from typing import Any

MAX_GROUPS = 4096


class SequenceGroups:
    """Prompts with several sequences (n > 1), by the part of the request id that their sequences share."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def end(self, request_id: str, num_sequences: int, num_tokens: int) -> list[int]:
        """One ended with so many tokens. When it is its prompt's last: the most tokens, once for each sequence.

        Where too many prompts are open, the oldest is given up and its ended sequences are returned.
        """
        if num_sequences <= 1:
            return [num_tokens]
        prompt = request_id.rpartition("-")[0]
        num_ended, most = self._open.pop(prompt, (0, 0))
        num_ended, most = num_ended + 1, max(most, num_tokens)
        if num_ended == num_sequences:
            return [most] * num_sequences
        self._open[prompt] = (num_ended, most)
        return self._give_up_oldest() if len(self._open) > MAX_GROUPS else []

    def state(self) -> Any:
        """In plain values."""
        return [[prompt, *counts] for prompt, counts in self._open.items()]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self._open = {prompt: (num_ended, most) for prompt, num_ended, most in state}

    def _give_up_oldest(self) -> list[int]:
        num_ended, most = self._open.pop(next(iter(self._open)))
        return [most] * num_ended
