"""The table of a device's kernels: calls, time, shares, rates, and its bound."""

import pytest

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker import profiler_kernels
from vllm_obs.engine.worker.profiler_kernels import KernelTable, kind_of
from vllm_obs.engine.worker.profiler_step import CapturedStep, device_ranges
from vllm_obs.engine.worker.profiler_torch import TorchEvent

US = 1000
FIRST, SECOND = "device 0 stream 7", "device 0 stream 13"
GEMM = "nvjet_tst_128x64"
MOMENTS = WorkerMoments(0, 0, 10 * US, 20 * US, 20 * US, 30 * US)


def table_of(*events: TorchEvent) -> KernelTable:
    table = KernelTable()
    for track, one in device_ranges(CapturedStep(1, 1, 1, MOMENTS, [], list(events))):
        table.add(track, one)
    return table


def test_each_kernel_has_its_calls_time_share_and_what_is_known_of_its_work() -> None:
    content = table_of(
        TorchEvent(40 * US, 50 * US, "Memcpy DtoH (Device -> Pinned)", FIRST, num_bytes=4000),
        TorchEvent(10 * US, 30 * US, GEMM, FIRST, flops=2_000_000),
        TorchEvent(30 * US, 40 * US, "paged_attention_kernel", FIRST),
        TorchEvent(60 * US, 80 * US, GEMM, FIRST, flops=2_000_000),
        TorchEvent(2 * US, 9 * US, "aten::mm"),
    ).content()
    assert content == {
        "device_seconds": pytest.approx(60e-6),
        "device_busy_seconds": pytest.approx(60e-6),
        "kernels": [
            {"kernel": GEMM, "kind": "cuda", "num_calls": 2, "device_seconds": pytest.approx(40e-6),
             "mean_seconds": pytest.approx(20e-6), "share_of_device": pytest.approx(2 / 3), "flops": 4_000_000,
             "flops_per_second": pytest.approx(1e11)},
            {"kernel": "paged_attention_kernel", "kind": "triton", "num_calls": 1,
             "device_seconds": pytest.approx(10e-6), "mean_seconds": pytest.approx(10e-6),
             "share_of_device": pytest.approx(1 / 6)},
            {"kernel": "Memcpy DtoH (Device -> Pinned)", "kind": "copy", "num_calls": 1,
             "device_seconds": pytest.approx(10e-6), "mean_seconds": pytest.approx(10e-6),
             "share_of_device": pytest.approx(1 / 6), "num_bytes": 4000, "bytes_per_second": pytest.approx(4e8)},
        ],
    }  # fmt: skip


def test_streams_that_overlap_keep_the_device_busy_once() -> None:
    content = table_of(
        TorchEvent(0, 30 * US, GEMM, FIRST),
        TorchEvent(10 * US, 20 * US, "copy", SECOND),
        TorchEvent(25 * US, 40 * US, "copy", SECOND),
        TorchEvent(0, 10 * US, GEMM, "device 1 stream 7"),
    ).content()
    assert content["device_busy_seconds"] == pytest.approx(50e-6)
    assert content["device_seconds"] == pytest.approx(65e-6)


def test_the_rows_are_bounded_and_lose_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler_kernels, "MAX_ROWS", 6)
    monkeypatch.setattr(profiler_kernels, "MAX_SHOWN", 3)
    events = [TorchEvent(number * US, (number + 1) * US, f"kernel_{number}", FIRST) for number in range(50)]
    rows = table_of(*events).content()["kernels"]
    assert len(rows) <= 3 + 1
    assert sum(row["device_seconds"] for row in rows) == pytest.approx(50e-6)


def test_a_name_that_nobody_reads_to_its_end_is_cut() -> None:
    (row,) = table_of(TorchEvent(0, US, "x" * 5000, FIRST)).content()["kernels"]
    assert len(row["kernel"]) == profiler_kernels.MAX_NAME_CHARS


def test_kinds_are_told_by_names() -> None:
    assert kind_of("rms_norm_kernel") == "triton"
    assert kind_of("void at::native::vectorized_elementwise_kernel<4, float>(int)") == "cuda"
    assert kind_of("Memset (Device)") == "copy"
