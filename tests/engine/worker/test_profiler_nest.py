"""Ranges find their place within one another, also where two clocks disagree by some microseconds."""

from vllm_obs.engine.worker.profiler_nest import nested
from vllm_obs.engine.worker.profiler_step import KERNEL, MEMORY, PHASE, STEP, TORCH, Range


def spans(*ranges: Range) -> dict[str, tuple[int, int, int, str]]:
    """Name → begin, end, own time, phase."""
    return {
        one.range.name: (one.range.begun_at, one.range.ended_at, one.own_ns, one.phase) for one in nested(ranges)
    }


def test_own_time_is_what_no_part_takes() -> None:
    found = spans(
        Range(0, 100, "step", STEP),
        Range(0, 40, "forward", PHASE),
        Range(10, 30, "linear", KERNEL),
        Range(12, 20, "copy", TORCH),
        Range(50, 90, "sample", PHASE),
    )
    assert found == {
        "copy": (12, 20, 8, "forward"),
        "linear": (10, 30, 12, "forward"),
        "forward": (0, 40, 20, "forward"),
        "sample": (50, 90, 40, "sample"),
        "step": (0, 100, 20, ""),
    }


def test_what_reaches_beyond_its_parent_is_cut_there() -> None:
    found = spans(Range(0, 50, "a", TORCH), Range(45, 55, "b", TORCH), Range(60, 70, "c", TORCH))
    assert found == {"b": (45, 50, 5, ""), "a": (0, 50, 45, ""), "c": (60, 70, 10, "")}


def test_an_allocation_is_its_operators_and_takes_no_time() -> None:
    ranges = [
        Range(0, 50, "a", TORCH),
        Range(5, 5, "[memory]", MEMORY, num_bytes=64),
        Range(6, 6, "[memory]", MEMORY, num_bytes=-64),
        Range(80, 80, "[memory]", MEMORY, num_bytes=32),
    ]
    assert [(one.range.name, one.own_ns, one.num_bytes) for one in nested(ranges)] == [("a", 50, 64)]


def test_of_nothing_there_is_nothing() -> None:
    assert list(nested([])) == []
