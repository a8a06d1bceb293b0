"""What is asked of a GPU when there is one, asked of a fake: its name and capability, and its clock."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_obs.engine.kernels.triton import device_timer
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.kernels.triton.device_timer import DeviceTimer, HostTimer
from vllm_obs.engine.kernels.triton.tuning_session import GpuCard
from vllm_obs.engine.model.triton_decoder import TritonCard


class FakeCuda:
    """Notes in which order it is asked for things; its clock says that a run takes 2.5 ms."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.asked.append("record"),
            synchronize=lambda: self.asked.append("synchronize"),
            elapsed_time=lambda end: 2.5,
        )

    def cover(self, num_bytes: int, dtype: torch.dtype, device: str) -> Any:
        assert (num_bytes, dtype, device) == (device_timer.COVER_BYTES, torch.uint8, "cuda")
        return SimpleNamespace(zero_=lambda: self.asked.append("cover"))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(device_timer.torch, "empty", fake.cover)
    return fake


def test_a_run_is_timed_by_the_device_behind_what_clears_its_cache(cuda: FakeCuda) -> None:
    run: Callable[[], None] = lambda: cuda.asked.append("run")  # noqa: E731
    assert DeviceTimer().seconds(run) == 0.0025
    assert cuda.asked == ["cover", "record", "run", "record", "synchronize"]


def test_a_run_on_the_host_is_timed_by_its_clock() -> None:
    ran: list[int] = []
    assert HostTimer().seconds(lambda: ran.append(1)) > 0
    assert ran == [1]


def test_the_card_that_is_tuned_is_the_current_one(cuda: FakeCuda) -> None:
    card = GpuCard.current()
    assert (card.name, card.capability, card.device) == ("NVIDIA H200", 90, torch.device("cuda", 0))


def test_a_model_takes_the_cards_table_and_says_which(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="vllm_obs.engine.model.triton_decoder"):
        card = TritonCard.of_device((9, 0))
    assert (card.configs, card.num_processors) == (configs_for(90), 132)
    assert "Kernel table: sm_90.json, of its compute capability" in caplog.text
