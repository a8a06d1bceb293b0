"""The load of an engine is what it reported and what was sent since, and never less than what is ours."""

import pytest
from fake_engine import FakeEngine
from fake_executor import make_request
from step_outputs import step_outputs

from vllm_obs.engine import engine_place
from vllm_obs.engine.balancer import EngineLoad
from vllm_obs.engine.engine_place import EnginePlace
from vllm_obs.engine.messages import SchedulerStats


@pytest.fixture
def place() -> EnginePlace:
    return EnginePlace(FakeEngine(lambda request: [1]))  # type: ignore[arg-type]


def send(place: EnginePlace, *request_ids: str) -> None:
    for request_id in request_ids:
        place.sending(make_request(request_id, [1])._replace(submitted_at=7))


def report(place: EnginePlace, num_running: int, num_waiting: int) -> None:
    place.saw(step_outputs()._replace(stats=SchedulerStats(num_running, num_waiting, 0.0, 0)))


def test_what_was_sent_since_the_report_counts_until_the_next_one(place: EnginePlace) -> None:
    send(place, "a", "b")
    assert (place.load, place.last_sent_at) == (EngineLoad(0, 0, 2, True), 7)
    report(place, num_running=2, num_waiting=1)  # one of another client
    assert place.load == EngineLoad(1, 2, 0, True)
    send(place, "c")
    assert place.load == EngineLoad(1, 2, 1, True)
    for request_id in "abc":
        place.ended(request_id)
    assert place.load == EngineLoad(1, 2, 0, True), "nothing of ours is there that could be on its way"


def test_a_report_that_left_out_what_was_on_its_way_is_made_good(place: EnginePlace) -> None:
    send(place, "a", "b", "c")
    report(place, num_running=1, num_waiting=0)
    assert place.load == EngineLoad(0, 1, 2, True)


def test_an_old_report_of_others_work_is_not_believed_for_ever(
    place: EnginePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(place, num_running=20, num_waiting=5)
    assert place.load == EngineLoad(5, 20, 0, True)
    monkeypatch.setattr(engine_place, "STATS_SECONDS", -1.0)
    assert place.load == EngineLoad(0, 0, 0, True)


def test_one_that_ails_or_is_lost_is_not_up_and_its_successor_is(place: EnginePlace) -> None:
    send(place, "a", "b")
    place.ailment = "stalled"
    assert (place.load.is_up, place.is_up) == (False, True)
    place.give_up("nobody reads")
    assert (place.dead_cause, place.is_up) == ("nobody reads", False)
    assert (place.lose(), place.cause) == (["a", "b"], "nobody reads")
    place.let_in(place.client.successor())
    assert (place.load, place.dead_cause, place.client.generation) == (EngineLoad(0, 0, 0, True), None, 1)
