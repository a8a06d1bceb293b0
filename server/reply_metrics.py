"""The timing of one reply, under vLLM's names; times in milliseconds."""

from typing import Any

from vllm_obs.engine.frontend.outputs import SequenceDelta, SequenceTiming

NS_A_MILLISECOND = 1e6


class ReplyMetrics:
    """Collects the timing of a request that is one sequence; of others, and where it is switched off, nothing."""

    def __init__(self, is_enabled: bool, num_choices: int) -> None:
        self.is_enabled = is_enabled
        self._is_one = num_choices == 1
        self._timing: SequenceTiming | None = None
        self._num_tokens = 0

    def add(self, delta: SequenceDelta) -> None:
        """Take in what a delta says."""
        self._num_tokens = delta.num_output_tokens
        self._timing = delta.timing or self._timing

    def fields(self) -> dict[str, Any] | None:
        """The `metrics` of a reply. A time that did not take place is null."""
        if not self.is_enabled or not self._is_one or self._timing is None:
            return None
        taken_at, scheduled_at, first_at, last_at = self._timing
        generation = _milliseconds(first_at, last_at)
        running = _milliseconds(scheduled_at, last_at)
        is_rated = generation is not None and self._num_tokens > 1
        return {
            "time_to_first_token_ms": _milliseconds(scheduled_at, first_at),
            "generation_time_ms": generation,
            "queue_time_ms": _milliseconds(taken_at, scheduled_at),
            "mean_itl_ms": generation / (self._num_tokens - 1) if generation is not None and is_rated else None,
            "tokens_per_second": 1e3 * self._num_tokens / running if running else None,
        }


def _milliseconds(begun_at: int, ended_at: int) -> float | None:
    return (ended_at - begun_at) / NS_A_MILLISECOND if begun_at and ended_at else None
