"""Another host's moments are told by this host's clock; whatever else is in a reply stays."""

from vllm_obs.engine.executor.commands import Executed, Sampled
from vllm_obs.engine.executor.moments import by_our_clock
from vllm_obs.engine.plan import ModelRunnerOutput, WorkerMoments


def answer(*moments: WorkerMoments) -> Sampled:
    return Sampled(7, ModelRunnerOutput(1, ["a"], [5], [], [], [], list(moments)))


def test_only_the_moments_are_moved() -> None:
    theirs = WorkerMoments(3, 100, 200, 300, 400, 500)
    assert by_our_clock(answer(theirs), -40) == answer(WorkerMoments(3, 60, 160, 260, 360, 460))
    assert by_our_clock(answer(theirs), 0) == answer(theirs)


def test_a_reply_without_moments_stays_as_it_is() -> None:
    assert by_our_clock(Executed(7), 1000) == Executed(7)
