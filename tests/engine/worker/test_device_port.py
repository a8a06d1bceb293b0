"""Arrays come to a device by one packed copy; a step's time is read when the device has come to its end."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fake_device import FakeDevice, FakeEvent
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from vllm_obs.engine.worker.device_clock import MAX_UNREAD, DeviceClock
from vllm_obs.engine.worker.device_port import (
    ALIGNMENT,
    CudaPort,
    HostPort,
    make_port,
    pack,
    packed_places,
    unpacked,
)

arrays_of_kinds = st.lists(
    numpy_strategies.arrays(
        st.sampled_from([np.int64, np.int32, np.float32, np.uint8]),
        numpy_strategies.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    max_size=6,
)


@given(arrays_of_kinds)
def test_packed_arrays_come_out_as_they_went_in(arrays: list[Any]) -> None:
    places, num_bytes = packed_places(arrays)
    assert all(place % ALIGNMENT == 0 for place in places)
    target = np.full(num_bytes, 7, np.uint8)
    pack(arrays, places, target)
    for array, tensor in zip(arrays, unpacked(arrays, places, torch.from_numpy(target)), strict=True):
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


def test_arrays_that_are_not_contiguous_are_packed_in_order() -> None:
    array = np.arange(12).reshape(3, 4).T[::2]
    (tensor,) = FakeDevice().upload([array])
    assert tensor.tolist() == array.tolist()


def test_the_host_shares_its_memory_and_waits_for_nothing() -> None:
    port = make_port("cpu")
    assert isinstance(port, HostPort)
    array = np.zeros(3)
    (tensor,) = port.upload([array])
    tensor[1] = 5
    assert array.tolist() == [0, 5, 0]
    (found,) = port.download([tensor])()
    assert found.tolist() == [0, 5, 0]
    assert port.event() is None


class CudaEvent:
    """Stands for torch's; notes what is done with each."""

    made: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool = False) -> None:
        self.made.append("timed" if enable_timing else "plain")

    def record(self) -> None:
        self.made.append("record")

    def synchronize(self) -> None:
        self.made.append("synchronize")


def test_the_port_of_a_gpu_copies_at_once_and_waits_only_for_results() -> None:
    CudaEvent.made.clear()
    port = CudaPort(torch.device("cpu"), CudaEvent)
    arrays = [np.arange(5), np.ones((2, 3), np.float32), np.empty((0, 2), np.int32)]
    tensors = port.upload(arrays)
    assert [tensor.tolist() for tensor in tensors] == [array.tolist() for array in arrays]
    arrays[0][:] = 9
    assert tensors[0].tolist() == [0, 1, 2, 3, 4]
    results = port.download(tensors)
    assert CudaEvent.made == ["plain", "record"]
    tensors[0].fill_(7)
    assert [found.tolist() for found in results()] == [[0, 1, 2, 3, 4], arrays[1].tolist(), []]
    assert CudaEvent.made == ["plain", "record", "synchronize"]
    port.event()
    assert CudaEvent.made[3:] == ["timed", "record"]


def test_a_clock_on_the_host_says_nothing() -> None:
    clock = DeviceClock(HostPort())
    clock.begin()
    clock.end()
    assert clock.take_ns() == 0


def test_a_step_is_timed_once_and_only_when_the_device_has_ended_it() -> None:
    device = FakeDevice()
    clock = DeviceClock(device)
    clock.begin()
    clock.end()
    assert clock.take_ns() == 0, "the device is not there yet"
    device.num_reached = device.num_events
    assert clock.take_ns() == 2_000_000
    assert clock.take_ns() == 0


def test_a_step_that_broke_off_is_not_timed() -> None:
    device = FakeDevice()
    clock = DeviceClock(device)
    clock.begin()
    clock.begin()
    clock.end()
    clock.end()
    device.num_reached = device.num_events
    assert clock.take_ns() == 2_000_000


def test_of_a_device_that_hangs_few_events_are_kept() -> None:
    device = FakeDevice()
    clock = DeviceClock(device)
    for _ in range(3 * MAX_UNREAD):
        clock.begin()
        clock.end()
    device.num_reached = device.num_events
    assert clock.take_ns() == MAX_UNREAD * 2_000_000


def test_an_event_that_was_not_reached_cannot_be_read() -> None:
    device = FakeDevice()
    with pytest.raises(AssertionError, match="has not come to them"):
        FakeEvent(0, device).elapsed_time(FakeEvent(1, device))
