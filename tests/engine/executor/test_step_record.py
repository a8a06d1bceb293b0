"""A rank's step is recorded with how its worker ran it, where the worker tells."""

from vllm_obs.engine.executor.step_record import Told, step_record, told_by
from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.execution import Execution
from vllm_obs.telemetry.records import WorkerStep

MOMENTS = WorkerMoments(1, 10, 20, 30, 40, 50)


class Telling:
    """A worker with a GPU and others beside it."""

    def take_exchange_ns(self) -> int:
        return 7

    def take_execution(self) -> Execution:
        return Execution(8, 3, "", 1234)


def test_a_worker_that_tells_is_taken_at_its_word() -> None:
    assert step_record(5, MOMENTS, (5, 5), told_by(Telling())) == WorkerStep(
        step=5,
        rank=1,
        received_at=10,
        prepared_at=20,
        forwarded_at=30,
        sample_begun_at=40,
        sampled_at=50,
        num_tokens=5,
        num_rows=5,
        exchange_ns=7,
        graph_size=8,
        num_padded_tokens=3,
        eager_reason="",
        device_ns=1234,
    )


def test_one_that_does_not_ran_on_the_host() -> None:
    assert told_by(object()) == Told()
    assert step_record(5, MOMENTS, (6, 2), Told()) == WorkerStep(5, *MOMENTS, 6, 2)
    assert WorkerStep(5, *MOMENTS, 6, 2)[-5:] == (0, *Execution())
