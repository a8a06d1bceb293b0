"""Torch's events come on the run's clock, those of a device on a track of their own."""

import time
from pathlib import Path
from typing import Any

import torch
from chrome_trace import check_trace, read_trace
from torch._C._autograd import DeviceType

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.profiler_step import CapturedStep, device_ranges
from vllm_obs.engine.worker.profiler_torch import TorchCycle, TorchEvent, _offset
from vllm_obs.engine.worker.profiler_trace import TraceFile, TraceSite

AGREEMENT_NS = 2_000_000


def test_an_operator_lies_where_it_ran() -> None:
    cycle = TorchCycle("cpu", ("shapes",))
    x = torch.ones(4, 8)
    cycle.begin()
    before = time.monotonic_ns()
    torch.mm(x, x.T)
    after = time.monotonic_ns()
    events = cycle.end()
    (product,) = [event for event in events if event.name == "aten::mm"]
    assert before - AGREEMENT_NS < product.begun_at <= product.ended_at < after + AGREEMENT_NS
    assert (product.track, product.is_python, product.shapes) == ("", False, "4×8, 8×4")
    assert not any("mark" in event.name for event in events)


def test_a_cycle_that_has_not_begun_holds_nothing() -> None:
    assert TorchCycle("cpu", ()).end() == []


class DeviceEvent:
    """A kernel of a device as torch tells of it."""

    def __init__(self, name: str, start_ns: int, duration_ns: int, **facts: Any) -> None:
        self._values = (name, start_ns, duration_ns)
        self._facts = facts

    def name(self) -> str:
        return self._values[0]

    def start_ns(self) -> int:
        return self._values[1]

    def duration_ns(self) -> int:
        return self._values[2]

    def device_type(self) -> DeviceType:
        return DeviceType.CUDA

    def device_index(self) -> int:
        return 1

    def device_resource_id(self) -> int:
        return 7

    def is_python_function(self) -> bool:
        return False

    def shapes(self) -> list[list[int]]:
        return []

    def flops(self) -> int:
        return 0

    def nbytes(self) -> int:
        return 0

    def is_hidden_event(self) -> bool:
        return False

    def is_user_annotation(self) -> bool:
        return bool(self._facts.get("is_named", False))

    def metadata_json(self) -> str:
        return str(self._facts.get("metadata", ""))

    def correlation_id(self) -> int:
        return 0

    def linked_correlation_id(self) -> int:
        return int(self._facts.get("operator", 0))


class HostEvent(DeviceEvent):
    """An operator on the CPU."""

    def device_type(self) -> DeviceType:
        return DeviceType.CPU

    def correlation_id(self) -> int:
        return int(self._facts["number"])

    def flops(self) -> int:
        return int(self._facts.get("flops", 0))


class Recorded:
    """What torch's profiler holds once it is left."""

    def __init__(self, *events: DeviceEvent) -> None:
        self.kineto_results = self
        self._events = list(events)

    def __exit__(self, *error: object) -> None:
        pass

    def events(self) -> list[DeviceEvent]:
        return self._events


def test_a_recorded_step_of_a_gpu_tells_of_its_kernels() -> None:
    cycle = TorchCycle("cuda", ("flops",))
    cycle._profile = Recorded(
        HostEvent("aten::mm", 1000, 50, number=3, flops=8_000_000),
        DeviceEvent("nvjet_tst_128x64", 1100, 400, operator=3),
        DeviceEvent("splitK_reduce", 1500, 20, operator=3),
        DeviceEvent("paged_attention_kernel", 1600, 300),
        DeviceEvent("Memcpy DtoH (Device -> Pinned)", 2000, 10, metadata='"stream": 7, "bytes": 4096, "x": 1'),
        DeviceEvent("engine.step", 1000, 2000, is_named=True),
        DeviceEvent("vllm_obs.mark", 900, 0),
    )
    cycle._marks = [(900, 900)]
    found = {event.name: (event.track, event.flops, event.num_bytes) for event in cycle.end()}
    assert found == {
        "aten::mm": ("", 8_000_000, 0),
        "nvjet_tst_128x64": ("device 1 stream 7", 8_000_000, 0),
        "splitK_reduce": ("device 1 stream 7", 0, 0),
        "paged_attention_kernel": ("device 1 stream 7", 0, 0),
        "Memcpy DtoH (Device -> Pinned)": ("device 1 stream 7", 0, 4096),
    }


def test_the_mark_met_in_the_least_time_sets_the_clock() -> None:
    events: list[Any] = [DeviceEvent("vllm_obs.mark", 1000, 10), DeviceEvent("vllm_obs.mark", 2000, 0)]
    assert _offset(events, [(100, 900), (1490, 1510)]) == 500


def test_kernels_of_a_device_are_drawn_by_stream(tmp_path: Path) -> None:
    event = TorchCycle("cuda", ())._event(DeviceEvent("gemm", 5000, 300), 1000)
    assert event == TorchEvent(4000, 4300, "gemm", "device 1 stream 7")
    step = CapturedStep(1, 1, 1, WorkerMoments(0, 0, 1, 2, 3, 4), [], [event])
    ((track, work),) = device_ranges(step)
    path = tmp_path / "t.json"
    trace = TraceFile(path, TraceSite("Worker_TP0", 10, "steps", 11))
    trace.add_device(track, work)
    trace.close({"rank": 0})
    content = read_trace(path)
    (found,) = check_trace(content)
    names = {
        event["tid"]: event["args"]["name"] for event in content["traceEvents"] if event["name"] == "thread_name"
    }
    assert (found["name"], names[found["tid"]], found["ts"], found["dur"]) == ("gemm", track, 4.0, 0.3)
    assert content["otherData"] == {"rank": 0}
