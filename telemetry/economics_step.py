"""StepCost: how the time of a step is split among its rows, by a model of what each of them costs."""

from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from vllm_obs.telemetry.records import EngineDescribed, StepPlanned

FLOPS_PER_BYTE = {"cuda": 200.0}
CPU_FLOPS_PER_BYTE = 20.0
"""How many operations a device does in the time in which it reads one byte: what makes one unit of the two."""


class StepCost(NamedTuple):
    """What a step costs, in the cost of computing one token.

    `step_tokens` is what it costs before its first token (its weights are read once, whoever runs), shared evenly;
    `context_tokens` what reading one cached token's keys and values costs. An engine that has not described
    itself is split by tokens alone.
    """

    step_tokens: float = 0.0
    context_tokens: float = 0.0

    @classmethod
    def of(cls, described: EngineDescribed) -> "StepCost":
        """From the model's size and the kind of device."""
        if described.flops_per_token <= 0:
            return cls()
        balance = FLOPS_PER_BYTE.get(described.device.partition(":")[0], CPU_FLOPS_PER_BYTE)
        tokens_per_byte = balance / described.flops_per_token
        return cls(described.weight_bytes * tokens_per_byte, described.kv_bytes_per_token * tokens_per_byte)

    def weights(self, planned: StepPlanned) -> list[float]:
        """What each row costs, in the plan's order."""
        even, context = self.step_tokens / len(planned.request_ids), self.context_tokens
        tokens, computed = planned.num_scheduled_tokens, planned.num_computed_tokens
        return [even + num + context * (before + num) for num, before in zip(tokens, computed, strict=True)]


def split_ns(num_ns: int, weights: Sequence[float]) -> list[int]:
    """Whole nanoseconds in proportion to the weights, at least one of them positive.

    The running sum is rounded rather than each share, so that they sum exactly and each is within one of its due,
    in one pass (the largest remainder would have to be looked for in every step).
    """
    upto = list(accumulate(weights))
    scale = num_ns / upto[-1]
    bounds = list(map(int, map(scale.__mul__, upto)))
    bounds[-1] = num_ns
    return list(map(sub, bounds, [0, *bounds]))
