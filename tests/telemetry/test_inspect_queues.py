"""Both queues of an engine: who waits, in the scheduler's order and why, and how far each is that runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.inspect_queues import MAX_WAITING_SHOWN, queues_view
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.ring_tail import RingTail


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path, engine_bytes=1 << 22) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path, clock=lambda: run.now)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def queues(observer: Observer) -> dict[str, Any]:
    while not observer.drain_slice():
        pass
    return queues_view(observer.state, "0", observer.now())


def test_queues_say_who_waits_why_and_who_runs_how_far(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a", num_prompt=20)
    run.submit("b", num_prompt=30)
    run.submit("c", num_prompt=40)
    run.step("a", head_reason="token_budget")
    run.step("a", head_reason="kv_blocks")
    run.pass_time(5)
    # b came 20 ms before the first step's end was 5 + 5 ms later: 5 of c, two steps of 10 and the pause.
    assert queues(observer) == {
        "engine": "0",
        "step": 2,
        "head_reason": "kv_blocks",
        "num_waiting": 2,
        "num_counted": 2,
        "by_reason": {"kv_blocks": 1, "head_of_line": 1},
        "waiting": [
            {
                "request_id": "b-0-0",
                "place": 0,
                "reason": "kv_blocks",
                "seconds": 0.03,
                "num_prompt_tokens": 30,
                "state": "waiting",
            },
            {
                "request_id": "c-0-0",
                "place": 1,
                "reason": "head_of_line",
                "seconds": 0.025,
                "num_prompt_tokens": 40,
                "state": "waiting",
            },
        ],
        "num_running": 1,
        "running": [
            {
                "request_id": "a-0-0",
                "stage": "decode",
                "num_prompt_tokens": 20,
                "num_output_tokens": 2,
                "num_cached_tokens": 0,
                "num_computed_tokens": 21,
                "num_scheduled_tokens": 1,
                "num_blocks": 2,
                "num_preemptions": 0,
                "last_token_age_seconds": 0.006,
            }
        ],
    }


def test_one_that_is_not_in_the_last_step_has_no_tokens_in_it(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a")
    run.submit("b")
    run.step("a", "b")
    run.step("b")
    rows = {row["request_id"]: row["num_scheduled_tokens"] for row in queues(observer)["running"]}
    assert rows == {"a-0-0": 0, "b-0-0": 1}


def test_of_a_long_line_the_first_are_shown_and_all_are_counted(run: ScriptedRun, observer: Observer) -> None:
    num_waiting = MAX_WAITING_SHOWN + 5
    for index in range(num_waiting):
        run.submit(f"r{index}")
    view = queues(observer)
    assert (view["num_waiting"], view["num_counted"]) == (num_waiting, num_waiting)
    assert len(view["waiting"]) == MAX_WAITING_SHOWN
    assert view["by_reason"] == {"step_in_progress": num_waiting}


def test_an_unknown_engine_is_refused(observer: Observer) -> None:
    with pytest.raises(InspectError, match="there is no engine '7'"):
        queues_view(observer.state, "7", 0)


def test_a_look_at_a_line_leaves_it_as_it_is(run: ScriptedRun, observer: Observer) -> None:
    for name in ("a", "b", "c"):
        run.submit(name)
    for reason in ("max_num_seqs", "kv_blocks") * 20:
        run.step("a", head_reason=reason)
    view = queues(observer)
    assert [row["reason"] for row in view["waiting"]] == ["kv_blocks", "head_of_line"]
    behind = observer.state.sequences["c-0-0"]
    assert [interval.stage for interval in behind.intervals].count("queue") == 1
    assert (behind.waiting_since, view["waiting"][1]["seconds"]) == (
        behind.taken_at,
        (observer.now() - behind.taken_at) / 1e9,
    )
