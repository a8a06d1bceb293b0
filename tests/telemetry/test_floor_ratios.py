"""Each step is held against the least time for as much work: from when enough was seen, over a restart as well."""

import pytest
from fact_stream import ENGINE, FactStream
from verdict_run import NS, VerdictRun

from vllm_obs.telemetry.floor import MIN_SEEN, Work
from vllm_obs.telemetry.floor_ratios import FloorRatios
from vllm_obs.telemetry.inspect_steps import steps_since

MS = 10**6


def steps(stream: FactStream, num_steps: int, forward_ms: float = 10) -> None:
    for _ in range(num_steps):
        stream.step(("a",), parts={"forward": int(forward_ms * MS)})


@pytest.fixture
def stream() -> FactStream:
    stream = FactStream(num_blocks=512)
    stream.describe(num_blocks=512, kv_bytes_per_token=1)
    stream.submit("a", num_prompt_tokens=4, max_tokens=2000)
    stream.step(("a",))
    return stream


def test_a_steps_ratio_is_shown_as_soon_as_it_is_known(stream: FactStream) -> None:
    run = VerdictRun()
    steps(stream, MIN_SEEN)
    steps(stream, 1, forward_ms=30.16)
    run.tell(stream.facts)
    columns = steps_since(run.state, "0", -1, 100)["steps"]
    assert columns["floor_ratio"][:MIN_SEEN] == [None] * MIN_SEEN
    assert columns["floor_ratio"][MIN_SEEN:] == [pytest.approx(1.0), pytest.approx(3.0)]
    assert columns["floor_seconds"][-1] == pytest.approx(0.01008)
    assert set(columns["binding_limit"]) == {"underloaded"}


def test_a_windows_ratios_are_of_its_own_time(stream: FactStream) -> None:
    run = VerdictRun()
    steps(stream, 50)
    steps(stream, 50, forward_ms=30)
    begun_at = stream.pass_time(20 * NS)
    steps(stream, 50, forward_ms=40)
    run.tell(stream.facts)
    late, whole = run.floors.sketch(begun_at - NS), run.floors.sketch(0, "0")
    assert (late.num_observed, whole.num_observed) == (50, 143)
    assert late.quantile(0.5) == pytest.approx(4.0, rel=0.03)
    assert run.floors.sketch(0, "1").num_observed == 0


def test_floors_outlive_a_restart(stream: FactStream) -> None:
    steps(stream, 40)
    first = VerdictRun()
    first.tell(stream.facts)
    resumed = FloorRatios()
    resumed.restore(first.floors.state())
    work = Work(1, 1_000_000 + 10)
    assert resumed.expected_ns("0", work) == first.floors.expected_ns("0", work) == 10_080_000
    assert resumed.state() == first.floors.state()


def test_another_model_has_another_floor(stream: FactStream) -> None:
    run = VerdictRun()
    steps(stream, 40)
    stream.describe(num_blocks=512, kv_bytes_per_token=1)
    run.tell(stream.facts)
    work = Work(1, 1_000_000 + 10)
    assert run.floors.expected_ns("0", work) is not None
    run.tell(stream.describe(num_blocks=512, weight_bytes=7))
    assert run.floors.expected_ns("0", work) is None


def test_of_an_engine_that_said_nothing_of_itself_nothing_is_known() -> None:
    run, stream = VerdictRun(), FactStream()
    stream.submit("a", num_prompt_tokens=4, max_tokens=100)
    steps(stream, 20)
    run.tell(stream.facts)
    assert run.floors.sketch(0).num_observed == 0
    assert run.floors.expected_ns(ENGINE.engine, Work(1, 1)) is None
