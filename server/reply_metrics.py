"""What one reply tells of its own timing: vLLM's numbers in milliseconds, and the seconds of every stage."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from vllm_obs.engine.frontend.outputs import SequenceDelta, SequenceTiming

NS_A_MILLISECOND = 1e6
NS_A_SECOND = 1e9


class Arrived(NamedTuple):
    """The moments of a request before its tokens (monotonic ns)."""

    received_at: int
    parsed_at: int
    rendered_at: int


class ReplyMetrics:
    """Collects the timing of a request that is one sequence; of others, and where it is switched off, nothing."""

    def __init__(
        self,
        is_enabled: bool,
        num_choices: int,
        arrived: Arrived,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.is_enabled = is_enabled
        self._is_one = num_choices == 1
        self._arrived = arrived
        self._clock = clock
        self._timing: SequenceTiming | None = None
        self._num_tokens = 0

    def add(self, delta: SequenceDelta) -> None:
        """Take in what a delta says."""
        self._num_tokens = delta.num_output_tokens
        self._timing = delta.timing or self._timing

    def fields(self) -> dict[str, Any] | None:
        """The `metrics` of a reply that is about to be written. A time that did not take place is null."""
        if not self.is_enabled or not self._is_one or self._timing is None:
            return None
        timing = self._timing
        generation = _milliseconds(timing.first_token_at, timing.last_token_at)
        running = _milliseconds(timing.scheduled_at, timing.last_token_at)
        is_rated = generation is not None and self._num_tokens > 1
        return {
            "time_to_first_token_ms": _milliseconds(timing.scheduled_at, timing.first_token_at),
            "generation_time_ms": generation,
            "queue_time_ms": _milliseconds(timing.taken_at, timing.scheduled_at),
            "mean_itl_ms": generation / (self._num_tokens - 1) if generation is not None and is_rated else None,
            "tokens_per_second": 1e3 * self._num_tokens / running if running else None,
            "stages": self._stages(timing),
        }

    def _stages(self, timing: SequenceTiming) -> dict[str, float] | None:
        """Seconds of every stage up to now, which sum to the time since the request came; null without a token."""
        if not timing.first_token_at or not timing.scheduled_at:
            return None
        stages = stage_ns(self._arrived, timing, self._clock())
        return {stage: num_ns / NS_A_SECOND for stage, num_ns in stages.items()}


def stage_ns(arrived: Arrived, timing: SequenceTiming, written_at: int) -> dict[str, int]:
    """Nanoseconds of every stage of one sequence that has ended, in their order; they sum to the whole."""
    preempted, recompute, stalled, early = timing.detours
    moments = (
        *arrived,
        timing.tokenized_at,
        timing.taken_at,
        timing.scheduled_at,
        timing.first_token_at,
        timing.last_token_at,
        timing.returned_at,
        timing.ended_at,
        written_at,
    )
    lengths = [ended_at - begun_at for begun_at, ended_at in pairwise(moments)]
    receive, render, tokenize, submit, queue, to_first, to_last, back, detokenize, deliver = lengths
    return {
        "receive": receive,
        "render": render,
        "tokenize": tokenize,
        "submit": submit,
        "queue": queue,
        "prefill": to_first - early,
        "decode": to_last - (preempted + recompute + stalled - early),
        "preempted": preempted,
        "recompute": recompute,
        "stalled": stalled,
        "return": back,
        "detokenize": detokenize,
        "deliver": deliver,
    }


def _milliseconds(begun_at: int, ended_at: int) -> float | None:
    return (ended_at - begun_at) / NS_A_MILLISECOND if begun_at and ended_at else None
