"""The record of one rank's part of a step, with what its worker tells of it, if it does."""

from typing import Protocol, cast

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.execution import Execution
from vllm_obs.telemetry.records import WorkerStep


class Telling(Protocol):
    """A worker that tells; one of a model that is made up has none of these."""

    def take_exchange_ns(self) -> int:
        """How long it was in exchanges with other ranks since it was asked last."""

    def take_execution(self) -> Execution:
        """How its device ran the step that was sampled last."""


def step_record(step: int, moments: WorkerMoments, sizes: tuple[int, int], worker: object) -> WorkerStep:
    """`sizes` are the step's tokens and rows."""
    if not hasattr(worker, "take_execution"):
        return WorkerStep(step, *moments, *sizes)
    telling = cast(Telling, worker)
    size, num_padded, eager_reason, device_ns = telling.take_execution()
    return WorkerStep(
        step, *moments, *sizes, telling.take_exchange_ns(), size, num_padded, eager_reason, device_ns
    )
