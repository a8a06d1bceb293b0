"""Utilisation: work by second against what was measured, which limit binds, and nothing is claimed beyond."""

from typing import Any

import pytest
from fact_stream import ENGINE, FactStream

from vllm_obs.telemetry import utilisation as module
from vllm_obs.telemetry.floor_ratios import FloorRatios
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.records import WorkerLimits
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.utilisation import DECODE, PREFILL, EngineWork, Rates, Utilisation, WorkSum
from vllm_obs.telemetry.utilisation_view import CAVEAT, utilisation_view
from vllm_obs.telemetry.view import Source

MS = 10**6
S = 10**9
LIMITS = WorkerLimits(0, "float32", 4e9, 5e8, 7)
PARTS = {"prepare": 1 * MS, "forward": 8 * MS, "sample": 1 * MS}
"""Ten milliseconds in which a step of two tokens does 4 M operations (0.4 G/s) and reads 1 MB (0.1 GB/s)."""


class Run:
    """A run whose floors and utilisation are kept."""

    def __init__(self, *limits: WorkerLimits, **described: Any) -> None:
        self.stream = FactStream(now=1000 * S, num_blocks=512)
        self.state = RunState()
        floors = FloorRatios()
        self.view = Utilisation(floors.described)
        self.state.add_view(floors)
        self.state.add_view(self.view)
        self.stream.describe(kv_bytes_per_token=1, **described)
        self.stream.write(ENGINE, *limits)
        for name in ("a", "b"):
            self.stream.submit(name, num_prompt_tokens=1, max_tokens=4000)
        self.num_told = 0

    def steps(self, num: int, **parts: int) -> None:
        for _ in range(num):
            self.stream.step(("a", "b"), parts=PARTS | parts)

    def document(self, window: str = "1m") -> dict[str, Any]:
        for source, record in self.stream.facts[self.num_told :]:
            self.state.apply(source, record)
        self.num_told = len(self.stream.facts)
        assert self.state.views.num_errors == 0
        return utilisation_view(self.view, "0", window, max(moment_of(record) for record in self.stream.records))


def test_rates_are_shares_of_what_was_measured() -> None:
    run = Run(LIMITS)
    run.steps(1)
    run.stream.pass_time(1100 * S - run.stream.now)
    run.steps(50)
    run.stream.pass_time(1102 * S - run.stream.now)
    run.steps(1)
    document = run.document()
    assert (document["num_steps"], document["num_ranks"]) == (51, 1), "the first was before the window"
    assert document["window"]["begun_at"] == 1043 * S
    assert document["work"]["num_tokens"] == 102
    assert document["work"]["flops"] == 102 * 2_000_000
    assert document["work"]["intensity"] == pytest.approx(4.0, rel=0.001)
    assert document["worker"] == pytest.approx(
        {"seconds": 0.51, "flops_per_second": 4e8, "bytes_per_second": 1e8, "mfu": 0.1, "mbu": 0.2}, rel=0.001
    )
    assert document["forward"]["mfu"] == pytest.approx(0.125)
    assert document["wall"]["mfu"] == pytest.approx(0.1 * 0.51 / document["window"]["seconds"])
    assert document["phases"] == {"prepare": 0.1, "forward": 0.8, "wait": 0.0, "sample": 0.1}
    assert document["limits"] == {
        "dtype": "float32",
        "flops_per_second": 4e9,
        "bytes_per_second": 5e8,
        "balance": 8.0,
        "was_exceeded": {"flops": False, "bytes": False},
        "ranks": [LIMITS._asdict()],
    }
    assert document["caveat"] == CAVEAT


def test_fewer_operations_a_byte_than_the_machine_does_is_bound_by_memory() -> None:
    run = Run(LIMITS)
    run.stream.pass_time(S)
    run.steps(20)
    run.stream.pass_time(S)
    run.steps(20)
    document = run.document()
    roof = document["roofline"]
    assert (roof["binds"], roof["is_near"], roof["balance"]) == ("memory", False, 8.0)
    assert roof["share_of_roof"] == document["worker"]["mbu"]
    assert document["sentence"].startswith(
        "A step does 4 operations for each byte it reads, the machine 8, so memory would be the first to bind. "
        "But only 20 % of the limit is reached while workers work, and "
    )
    assert document["sentence"].endswith("the cost of each operation, or other programs.")


def test_more_operations_a_byte_than_the_machine_does_is_bound_by_arithmetic() -> None:
    run = Run(LIMITS._replace(flops_per_second=5e8))
    run.stream.pass_time(S)
    run.steps(150)
    document = run.document("10s")
    assert document["roofline"]["binds"] == "arithmetic"
    assert document["roofline"]["is_near"]
    assert document["roofline"]["balance"] == 1.0
    assert document["sentence"].startswith(
        "A step does 4 operations for each byte it reads, the machine 1: steps wait for arithmetic, so a step "
        "with more tokens takes longer. 80 % of the limit is reached while workers work"
    )


def test_decode_steps_are_told_from_those_with_a_prompt() -> None:
    run = Run(LIMITS._replace(flops_per_second=1e10))
    run.stream.submit("c", num_prompt_tokens=30, max_tokens=4)
    run.stream.pass_time(S)
    run.stream.step(("a", "c"), parts=PARTS)
    run.steps(3)
    kinds = run.document()["kinds"]
    assert {kind: each["num_steps"] for kind, each in kinds.items()} == {DECODE: 3, PREFILL: 1}
    assert kinds[PREFILL]["share"] == pytest.approx(0.25)
    assert kinds[PREFILL]["intensity"] == pytest.approx(62.0, rel=0.001)
    assert kinds[DECODE]["mfu"] == pytest.approx(0.04)


def test_step_that_does_more_than_was_measured_is_the_limit() -> None:
    run = Run(LIMITS._replace(flops_per_second=1e8))
    run.stream.pass_time(S)
    run.steps(9)
    limits = run.document()["limits"]
    assert limits["flops_per_second"] == pytest.approx(4e8)
    assert limits["was_exceeded"] == {"flops": True, "bytes": False}
    assert run.document()["worker"]["mfu"] == pytest.approx(1.0)


def test_of_several_ranks_the_limits_are_added_and_all_must_be_known() -> None:
    run = Run(LIMITS, world_size=2)
    assert run.document()["limits"] is None
    run.stream.write(ENGINE, LIMITS._replace(rank=1))
    limits = run.document()["limits"]
    assert (limits["flops_per_second"], limits["bytes_per_second"], len(limits["ranks"])) == (8e9, 1e9, 2)


def test_nothing_is_claimed_where_limits_are_not_known() -> None:
    run = Run()
    assert run.document()["sentence"] == "No step has run in this time."
    run.stream.pass_time(S)
    run.steps(5)
    document = run.document()
    assert (document["limits"], document["roofline"]) == (None, None)
    assert (document["worker"]["mfu"], document["worker"]["mbu"]) == (None, None)
    assert document["worker"]["flops_per_second"] > 0
    assert "was not measured" in document["sentence"]
    run.stream.write(ENGINE, LIMITS._replace(bytes_per_second=0.0))
    document = run.document()
    assert (document["limits"]["bytes_per_second"], document["limits"]["balance"]) == (None, None)
    assert document["worker"]["mfu"] > 0
    assert (document["worker"]["mbu"], document["roofline"]) == (None, None)


def test_limits_outlive_a_restart_and_a_new_engine_brings_its_own() -> None:
    run = Run(LIMITS)
    run.stream.pass_time(S)
    run.steps(5)
    before = run.document()["limits"]
    again = Utilisation(run.view.described)
    again.restore(run.view.state())
    assert utilisation_view(again, "0", "1m", run.stream.now)["limits"] == before
    again.record(Source("EngineCore_DP0", 201, 2001, "0"), LIMITS._replace(flops_per_second=6e9, measured_at=9))
    assert utilisation_view(again, "0", "1m", run.stream.now)["limits"]["flops_per_second"] == 6e9


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 10)
    monkeypatch.setattr(module, "MAX_ENGINES", 2)
    monkeypatch.setattr(module, "MAX_RANKS", 3)
    work = EngineWork()
    for second in range(50):
        work.add(second * S, DECODE, WorkSum(1, 1, 1, 1, MS), MS)
    assert len(work.seconds) == 10
    assert work.between(0, 100 * S)[DECODE].num_steps == 10
    assert work.seen == Rates(1000.0, 1000.0)
    view = Utilisation(lambda label: None)
    for label in ("0", "1", "2"):
        for rank in range(5):
            view.record(Source("w", 1, 1, label), LIMITS._replace(rank=rank))
    assert view.engine("2") is None
    assert [len(engine.limits) for engine in (view.engine("0"), view.engine("1")) if engine] == [3, 3]
