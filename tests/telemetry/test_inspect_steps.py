"""Steps are listed in parallel columns from any step on, and blocks as they are and as they were."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_run import MS, NUM_BLOCKS, ScriptedRun

from vllm_obs.telemetry.inspect_blocks import block_list, request_blocks
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_steps import COLUMNS, NewSteps, one_step, step_at, steps_since
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_state import RunState


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path, clock=lambda: run.now)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def state_of(observer: Observer) -> RunState:
    while not observer.drain_slice():
        pass
    return observer.state


def test_columns_are_parallel_and_say_what_ran(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_prompt=20, num_output=3)
    steps = steps_since(state_of(observer), "0", -1, 100)["steps"]
    assert set(steps) == set(COLUMNS)
    assert {len(column) for column in steps.values()} == {3}
    assert (steps["step"], steps["num_tokens"], steps["num_new_tokens"]) == ([1, 2, 3], [20, 1, 1], [1, 1, 1])
    begun_at = steps["schedule_begun_at"][0]
    assert steps["ranks"][0] == [
        [0, begun_at + MS, begun_at + 2 * MS, begun_at + 7 * MS, begun_at + 7 * MS, begun_at + 9 * MS]
    ]


def test_since_goes_on_where_the_last_answer_ended(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_output=25)
    state = state_of(observer)
    seen: list[int] = []
    since = 0
    while True:
        found = steps_since(state, "0", since, 10)
        if not found["steps"]["step"]:
            break
        seen += found["steps"]["step"]
        since = found["next_since"]
    assert seen == list(range(1, 26))
    assert since == 25
    assert steps_since(state, "0", -1, 3)["steps"]["step"] == [23, 24, 25]


def test_the_step_of_a_moment_is_the_last_begun_by_then(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_output=4)
    state = state_of(observer)
    begun_at = steps_since(state, "0", -1, 10)["steps"]["schedule_begun_at"]
    assert step_at(state, "0", begun_at[2]) == {"engine": "0", "step": 3, "is_kept": True}
    assert step_at(state, "0", begun_at[2] - 1)["step"] == 2
    assert step_at(state, "0", begun_at[0] - 1) == {"engine": "0", "step": 1, "is_kept": False}


def test_one_step_is_shown_whole(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a")
    run.submit("b")
    run.step("a", head_reason="kv_blocks")
    found = one_step(state_of(observer), "0", 1)
    assert found["planned"]["request_ids"] == ["a-0-0"]
    assert found["planned"]["head_reason"] == "kv_blocks"
    assert [worker["rank"] for worker in found["workers"]] == [0]
    assert [outputs["num_sequences"] for outputs in found["outputs"]] == [1]


def test_the_steps_of_an_engine_that_died_are_still_shown(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a")
    run.close()
    state = state_of(observer)
    assert state.engines == {}
    assert steps_since(state, "0", 0, 10)["steps"]["step"] == [1, 2, 3]
    assert block_list(state, "0", None)["num_blocks"] == NUM_BLOCKS


def test_new_steps_are_told_once_and_the_oldest_are_skipped(run: ScriptedRun, observer: Observer) -> None:
    new = NewSteps(capacity=4)
    observer.add_views([new])
    run.serve("a", num_output=3)
    state_of(observer)
    assert new.take()["0"]["step"] == [1, 2, 3]
    assert new.take() == {}
    run.serve("b", num_output=6)
    state_of(observer)
    assert (new.take()["0"]["step"], new.num_skipped) == ([6, 7, 8, 9], 2)


def test_blocks_are_shown_with_their_owners(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a", num_prompt=40)
    run.step("a")
    found = block_list(state_of(observer), "0", None)
    assert found["levels"] == {"num_free": NUM_BLOCKS - 3, "num_cached": 0, "num_active": 3}
    assert found["states"][:4] == ["active", "active", "active", "free"]
    assert (found["requests"], found["owners"][:4]) == (["a-0-0"], [[0], [0], [0], []])
    assert found["num_refs"][:4] == [1, 1, 1, 0]


def test_blocks_are_shown_as_they_were(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_prompt=40, num_output=1)
    run.submit("b", num_prompt=20)
    last = run.step("b")
    state = state_of(observer)
    assert request_blocks(state, "a", None)["sequences"][0]["block_ids"] == [0, 1, 2]
    assert request_blocks(state, "b", 1)["sequences"][0]["block_ids"] is None
    assert request_blocks(state, "b", last)["sequences"][0]["block_ids"] == [3, 4]
    then = block_list(state, "0", last - 1)
    assert then["step"] == last - 1
    assert then["requests"] == []


def test_an_unknown_engine_is_named_with_those_there_are(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a")
    state = state_of(observer)
    for ask in (lambda: steps_since(state, "7", 0, 1), lambda: block_list(state, "7", None)):
        with pytest.raises(InspectError, match=r"no engine '7'; there are \['0'\]"):
            ask()
