"""The record of one rank's part of a step, with what its worker tells of it, if it does."""

from typing import NamedTuple, Protocol, cast

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.execution import ON_THE_HOST, Execution
from vllm_obs.telemetry.records import WorkerStep


class Telling(Protocol):
    """A worker that tells; one of a model that is made up has none of these."""

    def take_exchange_ns(self) -> int:
        """How long it was in exchanges with other ranks since it was asked last."""

    def take_execution(self) -> Execution:
        """How its device ran the step that was sampled last."""


class Told(NamedTuple):
    """What a worker tells of a step once that is on its way: the next one may be on its way before its answer."""

    exchange_ns: int = 0
    execution: Execution = ON_THE_HOST


def told_by(worker: object) -> Told:
    """What a worker tells of the step that was sampled last; to be asked once."""
    if not hasattr(worker, "take_execution"):
        return Told()
    telling = cast(Telling, worker)
    return Told(telling.take_exchange_ns(), telling.take_execution())


def step_record(step: int, moments: WorkerMoments, sizes: tuple[int, int], told: Told) -> WorkerStep:
    """`sizes` are the step's tokens and rows."""
    size, num_padded, eager_reason, device_ns = told.execution
    return WorkerStep(step, *moments, *sizes, told.exchange_ns, size, num_padded, eager_reason, device_ns)
