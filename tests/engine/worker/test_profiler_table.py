"""The table of operators: sums, shares, and a bound on its rows."""

import pytest

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker import profiler_table
from vllm_obs.engine.worker.profiler_nest import nested
from vllm_obs.engine.worker.profiler_step import FORWARD, KERNEL, CapturedStep, Range, host_ranges
from vllm_obs.engine.worker.profiler_table import OperatorTable
from vllm_obs.engine.worker.profiler_torch import TorchEvent

MS = 1_000_000
MOMENTS = WorkerMoments(0, 0, 1 * MS, 9 * MS, 9 * MS, 10 * MS)


def step_with(*events: TorchEvent, number: int = 7) -> CapturedStep:
    return CapturedStep(number, 2, 3, MOMENTS, [], list(events))


def table_of(*steps: CapturedStep) -> OperatorTable:
    table = OperatorTable()
    for step in steps:
        table.add_step(step)
        for one in nested(host_ranges(step)):
            table.add(one)
    return table


def test_its_rows_sum_to_the_steps() -> None:
    events = [TorchEvent(2 * MS, 6 * MS, "aten::linear", flops=100), TorchEvent(3 * MS, 4 * MS, "aten::mm")]
    content = table_of(step_with(*events), step_with(*events, number=8)).content()
    operators = content.pop("operators")
    assert content == {
        "num_steps": 2,
        "first_step": 7,
        "last_step": 8,
        "step_seconds": 0.02,
        "median_step_seconds": 0.01,
        "max_step_seconds": 0.01,
        "forward_seconds": 0.016,
        "operators_forward_seconds": 0.008,
        "accounted_share": 0.5,
        "layers": [],
        "device_seconds": 0.0,
        "device_busy_seconds": 0.0,
        "kernels": [],
    }
    assert sum(row["self_seconds"] for row in operators) == pytest.approx(0.02)
    linear = next(row for row in operators if row["operator"] == "aten::linear")
    assert linear == {
        "operator": "aten::linear",
        "phase": "forward",
        "kind": "torch",
        "num_calls": 2,
        "total_seconds": 0.008,
        "self_seconds": 0.006,
        "share_of_steps": pytest.approx(0.3),
        "share_of_forward": pytest.approx(0.375),
        "flops": 200,
    }
    assert operators[0] == {
        "operator": profiler_table.BETWEEN,
        "phase": "forward",
        "kind": "host",
        "num_calls": 2,
        "total_seconds": 0.008,
        "self_seconds": 0.008,
        "share_of_steps": pytest.approx(0.4),
        "share_of_forward": pytest.approx(0.5),
    }


def test_work_on_a_device_runs_beside_the_phases() -> None:
    table = OperatorTable()
    table.add_device("device 0 stream 7", Range(0, 3 * MS, "gemm", KERNEL))
    content = table.content()
    assert content["operators"] == []
    assert [row["kernel"] for row in content["kernels"]] == ["gemm"]


def test_the_rows_are_bounded_and_lose_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler_table, "MAX_ROWS", 6)
    monkeypatch.setattr(profiler_table, "MAX_SHOWN", 3)
    events = [
        TorchEvent(1 * MS + 1000 * number, 1 * MS + 1000 * (number + 1), f"aten::{number}") for number in range(50)
    ]
    content = table_of(step_with(*events)).content()
    assert len(content["operators"]) <= 3 + 3
    assert sum(row["self_seconds"] for row in content["operators"]) == pytest.approx(0.01)
    others = [row for row in content["operators"] if row["operator"] == profiler_table.OTHER]
    assert {row["phase"] for row in others} >= {FORWARD}


def test_of_no_step_it_is_empty() -> None:
    content = OperatorTable().content()
    assert (content["num_steps"], content["operators"], content["accounted_share"]) == (0, [], 0.0)
