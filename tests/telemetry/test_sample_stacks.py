"""The sampler sees where every other thread is and whether it ran, within bounds of time, depth and room."""

import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from sample_sets import wait_for_the_end, waiting_thread, work_until_the_end

from vllm_obs.telemetry.sample_runs import RunBook
from vllm_obs.telemetry.sample_set import Frame, ThreadSamples
from vllm_obs.telemetry.sample_stacks import CUT_FRAME, MAX_DEPTH, OTHER_FRAME, SampleBounds, StackSampler

INTERVAL_NS = 10_000_000


def sampled(sampler: StackSampler, name: str) -> ThreadSamples:
    (thread,) = [thread for thread in sampler.book.samples() if thread.name == name]
    return thread


def stack_of(sampler: StackSampler, stack: int) -> list[Frame]:
    frames, stacks = sampler.code()
    return [frames[index] for index in stacks[stack]]


def functions_of(sampler: StackSampler, stack: int) -> list[str]:
    return [frame.function for frame in stack_of(sampler, stack)]


def test_a_waiting_thread_is_found_where_it_waits() -> None:
    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("waits") as thread:
        time.sleep(0.05)
        for _ in range(3):
            sampler.look(INTERVAL_NS)
    samples = sampled(sampler, "waits")
    assert samples.tid == thread.native_id
    (run,) = samples.runs
    assert (run.num_samples, run.seconds, run.num_ran) == (3, pytest.approx(0.03), 0)
    stack = stack_of(sampler, run.stack)
    assert wait_for_the_end.__name__ in [frame.function for frame in stack]
    assert [frame.file for frame in stack if frame.function == "Event.wait"] == ["threading.py"]
    assert all(frame.line > 0 for frame in stack)


def test_a_working_thread_is_seen_to_run_with_the_time_it_took() -> None:
    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("works", work_until_the_end):
        for _ in range(3):
            sampler.look(INTERVAL_NS)
            time.sleep(0.1)
    runs = sampled(sampler, "works").runs
    assert sum(run.num_ran for run in runs) == 2, "before the first look nothing is known"
    assert sum(run.cpu_seconds for run in runs) > 0
    assert work_until_the_end.__name__ in functions_of(sampler, runs[-1].stack)


def test_the_samplers_own_thread_is_left_out() -> None:
    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("waits"):
        sampler.look(INTERVAL_NS)
    assert "waits" in {thread.name for thread in sampler.book.samples()}
    assert threading.current_thread().name not in {thread.name for thread in sampler.book.samples()}


def test_a_thread_that_ended_and_one_that_came_do_not_disturb_it() -> None:
    sampler = StackSampler(SampleBounds(1))
    for name in ("first", "second", "third"):
        with waiting_thread(name):
            sampler.look(INTERVAL_NS)
    threads = {thread.name: thread for thread in sampler.book.samples()}
    assert {"first", "second", "third"} <= set(threads)
    assert [sum(run.num_samples for run in threads[name].runs) for name in ("first", "second", "third")] == [1] * 3


class RunningOn:
    """A frame whose thread goes on once it has been looked at: the call it came from returns."""

    def __init__(self, function: Callable[..., object], caller: "RunningOn | None") -> None:
        self.f_code, self.f_lasti = function.__code__, 0
        self._caller = caller

    @property
    def f_back(self) -> "RunningOn | None":
        caller, self._caller = self._caller, None
        return caller


def test_a_thread_that_runs_on_while_it_is_looked_at_has_the_stack_it_had() -> None:
    sampler = StackSampler(SampleBounds(1))
    frame: Any = RunningOn(wait_for_the_end, RunningOn(work_until_the_end, None))
    stack = sampler._stack(frame)
    assert functions_of(sampler, stack) == [work_until_the_end.__name__, wait_for_the_end.__name__]


def test_a_deep_stack_keeps_its_innermost_calls() -> None:
    def dive(depth: int, ending: threading.Event) -> None:
        if depth:
            dive(depth - 1, ending)
        else:
            wait_for_the_end(ending)

    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("dives", lambda ending: dive(2 * MAX_DEPTH, ending)):
        time.sleep(0.1)
        sampler.look(INTERVAL_NS)
    (run,) = sampled(sampler, "dives").runs
    stack = stack_of(sampler, run.stack)
    assert stack[0] == CUT_FRAME
    assert len(stack) == MAX_DEPTH + 1
    assert wait_for_the_end.__name__ in [frame.function for frame in stack]


def test_no_value_of_a_local_is_kept() -> None:
    def hold(ending: threading.Event) -> None:
        secret = "canary of a prompt"
        wait_for_the_end(ending)
        del secret

    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("holds", hold):
        sampler.look(INTERVAL_NS)
    assert "canary" not in repr((sampler.code(), sampler.book.samples()))


def test_stacks_without_room_are_counted_as_others() -> None:
    sampler = StackSampler(SampleBounds(1), RunBook(max_stacks=1))
    with waiting_thread("waits"):
        sampler.look(INTERVAL_NS)
    (run,) = sampled(sampler, "waits").runs
    assert stack_of(sampler, run.stack) == [OTHER_FRAME]
    assert sampler.book.num_unplaced == len(sampler.book.samples())


def test_it_looks_at_its_rate_until_its_time_is_over() -> None:
    sampler = StackSampler(SampleBounds(0.3, 50))
    with waiting_thread("waits"):
        thread = threading.Thread(target=sampler.run)
        thread.start()
        thread.join(10)
    cost, samples = sampler.cost, sampled(sampler, "waits")
    assert cost.num_looks + cost.num_missed == pytest.approx(15, abs=1)
    assert sum(run.num_samples for run in samples.runs) == cost.num_looks
    assert sum(run.seconds for run in samples.runs) <= cost.wall_seconds
    assert cost.wall_seconds == (sampler.ended_at - sampler.begun_at) / 1e9
    assert 0 < cost.cpu_seconds <= cost.wall_seconds
    assert cost.seconds_per_look == cost.cpu_seconds / cost.num_looks
    assert 0 < cost.share <= 1


def test_it_stops_when_told() -> None:
    sampler = StackSampler(SampleBounds(60))
    thread = threading.Thread(target=sampler.run)
    thread.start()
    sampler.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert sampler.ended_at - sampler.begun_at < 30e9


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (SampleBounds(2), SampleBounds(2, 99)),
        (SampleBounds(1e9, 1e9), SampleBounds(60, 250)),
        (SampleBounds(-1, 0), SampleBounds(0, 1)),
    ],
)
def test_bounds_are_brought_into_range(asked: SampleBounds, given: SampleBounds) -> None:
    assert StackSampler(asked).bounds == given


def test_lines_are_those_the_interpreter_tells() -> None:
    places: list[tuple[str, int]] = []

    def note(ending: threading.Event) -> None:
        frame = sys._getframe()
        while frame is not None:
            places.append((frame.f_code.co_qualname, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        ending.wait(30)

    sampler = StackSampler(SampleBounds(1))
    with waiting_thread("notes", note):
        time.sleep(0.05)
        sampler.look(INTERVAL_NS)
    (run,) = sampled(sampler, "notes").runs
    found = [(frame.function, frame.line) for frame in stack_of(sampler, run.stack)]
    # All callers of `note` are at the line from which they called it.
    outer = places[1:][::-1]
    assert found[: len(outer)] == outer
    assert all(line > 0 for (_, line), _ in pairwise(found))
