"""A small model of the queue's bound: who must be let in, who must not, and where either may be."""

from collections.abc import Sequence
from typing import NamedTuple

from vllm_obs.engine.queue_bound import QueueLimits


class Room(NamedTuple):
    """The prompt tokens of each sequence that waits, and how many more might run in the next step."""

    limits: QueueLimits
    waiting: Sequence[int]
    num_startable: int

    def refusals(self, new: Sequence[int]) -> set[str]:
        """The reasons for which so many more may be refused: those that would not find room if nobody started."""
        limits, prompts = self.limits, [*self.waiting, *new]
        return {
            reason
            for reason, number, most in (
                ("overloaded", len(prompts), limits.max_num_reqs),
                ("too_many_queued_tokens", sum(prompts), limits.max_num_tokens),
            )
            if most is not None and number > most
        }

    def must_refuse(self, new: Sequence[int]) -> bool:
        """Whether they are too many even if the next step takes as many as it can."""
        limits, prompts = self.limits, [*self.waiting, *new]
        num_tokens_of_step = limits.max_num_batched_tokens + max(prompts) if self.num_startable > 0 else 0
        return any(
            most is not None and number > most + taken
            for number, most, taken in (
                (len(prompts), limits.max_num_reqs, max(0, self.num_startable)),
                (sum(prompts), limits.max_num_tokens, num_tokens_of_step),
            )
        )
