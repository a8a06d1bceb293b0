"""What a device says that it ran gets the work of the launches, one by one and in order."""

import numpy as np

from vllm_obs.engine.kernels.triton.launch_work import LaunchWork, StepRows
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.worker.profiler_launches import rows_of, with_work
from vllm_obs.engine.worker.profiler_torch import TorchEvent

STREAM = "device 0 stream 7"
ROWS = StepRows([1, 2], [10, 4])
ATTENTION = LaunchWork("paged_attention_kernel", 100, key_bytes=8, pair_flops=2)


def test_the_rows_of_a_plan_are_what_it_computes_and_what_lies_behind() -> None:
    new = NewRow("a", np.arange(9, dtype=np.int32), 9, SamplingSpec(), [0], 4)
    plan = StepPlan(1, [new], ["b", "c"], [[], []], [7, 30], [-1, -1], [5, 1, 1], [])
    assert rows_of(plan) == StepRows([5, 1, 1], [9, 8, 31])


def test_kernels_have_the_bytes_and_operations_of_their_launches_in_order() -> None:
    norm = LaunchWork("rms_norm_kernel", 64)
    events = [
        TorchEvent(50, 60, "paged_attention_kernel", STREAM),
        TorchEvent(30, 40, "nvjet_tst", STREAM, flops=9),
        TorchEvent(20, 30, "rms_norm_kernel", STREAM),
        TorchEvent(10, 20, "paged_attention_kernel", STREAM),
        TorchEvent(0, 5, "paged_attention_kernel"),
    ]
    windowed = ATTENTION._replace(window=3)
    found = with_work(events, [ATTENTION, norm, windowed], ROWS)
    first = {"flops": 2 * (10 + 3 + 4), "num_bytes": 100 + 8 * (10 + 4)}
    second = {"flops": 2 * (3 + 3 + 3), "num_bytes": 100 + 8 * (3 + 4)}
    assert found == [
        events[0]._replace(**second),
        events[1],
        events[2]._replace(num_bytes=64),
        events[3]._replace(**first),
        events[4],
    ]


def test_a_kernel_that_ran_more_often_than_it_was_launched_is_left_as_it_is() -> None:
    events = [TorchEvent(place, place + 1, "paged_attention_kernel", STREAM) for place in range(2)]
    assert with_work(events, [ATTENTION], ROWS) == events
