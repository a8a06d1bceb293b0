"""How a rank's device ran a step: what of it goes into the step's record."""

from typing import NamedTuple

from vllm_obs.telemetry.records import EagerReason


class Execution(NamedTuple):
    """As a graph of `graph_size` rows, `num_padded_tokens` of them for nothing, or eagerly (0, 0) for a reason.

    `device_ns` is how long the device was busy with the steps before that it had not told of.
    """

    graph_size: int = 0
    num_padded_tokens: int = 0
    eager_reason: EagerReason = "no_gpu"
    device_ns: int = 0


ON_THE_HOST = Execution()
