"""The floor is the least time seen for at least as much work: it never falls with more, and it is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.telemetry.floor import MAX_BUCKETS, MIN_SEEN, Floor, Work, worker_ns
from vllm_obs.telemetry.records import WorkerStep

KIB = 1024
works = st.builds(Work, st.integers(1, 4096), st.integers(KIB, KIB**3))


def seen(floor: Floor, work: Work, *num_ns: int) -> None:
    for each in num_ns:
        floor.observe(work, each)


def test_it_is_not_known_before_enough_was_seen() -> None:
    floor, work = Floor(), Work(8, KIB)
    seen(floor, work, *[500] * (MIN_SEEN - 1))
    assert floor.of(work) is None
    seen(floor, work, 700)
    assert floor.of(work) == 500
    assert floor.of(Work(4096, KIB)) is None


def test_the_least_time_counts_and_sinks() -> None:
    floor, work = Floor(), Work(8, KIB)
    seen(floor, work, *[900] * MIN_SEEN, 400, 800)
    assert floor.of(work) == 400
    seen(floor, work, 300)
    assert floor.of(work) == 300


def test_more_work_done_faster_lowers_the_floor_of_less() -> None:
    """What few tokens took at their slowest is not their floor when many took less."""
    floor = Floor()
    seen(floor, Work(1, KIB), *[900] * MIN_SEEN)
    seen(floor, Work(100, 64 * KIB), *[600] * MIN_SEEN)
    assert (floor.of(Work(1, KIB)), floor.of(Work(100, 64 * KIB))) == (600, 600)


def test_one_greater_step_bounds_what_is_not_known() -> None:
    floor = Floor()
    seen(floor, Work(100, 64 * KIB), 600)
    assert (floor.bound(Work(1, KIB)), floor.of(Work(1, KIB))) == (600, None)
    assert floor.bound(Work(4096, KIB)) is None


@given(st.lists(st.tuples(works, st.integers(1, 10**9)), min_size=1, max_size=60), st.lists(works, max_size=12))
def test_more_work_never_has_a_lower_floor(steps: list[tuple[Work, int]], asked: list[Work]) -> None:
    floor = Floor()
    for work, num_ns in steps:
        seen(floor, work, *[num_ns] * MIN_SEEN)
    known = [(work, floor.of(work)) for work in [*asked, *(work for work, _ in steps)]]
    for less, low in known:
        for more, high in known:
            if less.num_tokens <= more.num_tokens and less.num_bytes <= more.num_bytes and low and high:
                assert low <= high


def test_it_goes_on_from_its_state() -> None:
    floor = Floor()
    seen(floor, Work(8, KIB), *[500] * MIN_SEEN)
    seen(floor, Work(900, KIB**2), 70_000)
    resumed = Floor()
    resumed.restore(floor.state())
    assert resumed.state() == floor.state()
    assert (resumed.of(Work(8, KIB)), resumed.of(Work(900, KIB**2))) == (500, None)
    with pytest.raises((TypeError, ValueError)):
        Floor().restore([["no", "numbers", "in", "it"]])


def test_the_rarest_buckets_make_room() -> None:
    floor, often = Floor(), Work(3, 1)
    seen(floor, often, *[10] * MIN_SEEN)
    for exponent in range(2 * MAX_BUCKETS):
        seen(floor, Work(5, int(1.1**exponent) + 1), 50)
    assert len(floor) == MAX_BUCKETS
    assert floor.of(often) == 10


def test_ranks_work_from_the_first_taking_to_the_last_token() -> None:
    ranks = [WorkerStep(1, 0, 100, 110, 150, 150, 170, 4, 1), WorkerStep(1, 1, 90, 95, 150, 150, 180, 4, 1)]
    assert (worker_ns(ranks), worker_ns([])) == (90, 0)
