"""Tensors moved side by side keep their numbers, live as long as they are used, and are hardly there twice."""

import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from vllm_obs.engine.kernels.cpu import large_pages
from vllm_obs.engine.kernels.cpu.large_pages import move_to_large_pages


def nothing() -> None:
    """Gives nothing back."""


def test_tensors_keep_their_numbers_shapes_and_types() -> None:
    tensors = [torch.randn(3, 5), torch.arange(7, dtype=torch.uint8), torch.empty(0, 4), torch.randn(9).half()]
    before = [tensor.clone() for tensor in tensors]
    move_to_large_pages(tensors, nothing)
    assert [each.shape for each in tensors] == [each.shape for each in before]
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def test_they_lie_in_order_each_with_memory_of_its_own() -> None:
    first, second = torch.zeros(5), torch.ones(5)
    move_to_large_pages([first, second], nothing)
    assert second.data_ptr() - first.data_ptr() == 64
    assert first.untyped_storage().nbytes() == 20
    first.fill_(7)
    assert torch.equal(second, torch.ones(5))


def test_one_that_is_kept_keeps_the_memory() -> None:
    tensors = [torch.zeros(1 << 20), torch.arange(1 << 10)]
    move_to_large_pages(tensors, nothing)
    kept = tensors.pop()
    tensors.clear()
    gc.collect()
    assert torch.equal(kept, torch.arange(1 << 10))


def test_what_was_moved_is_given_back_before_the_rest_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_GIVE_BACK_BYTES", 2 * 64)
    arrays: list[Any] = [np.full(8, number, np.int64) for number in range(6)]
    held = [weakref.ref(array) for array in arrays]
    tensors = [torch.from_numpy(array) for array in arrays]
    arrays.clear()
    num_held: list[int] = []
    move_to_large_pages(tensors, lambda: num_held.append(sum(each() is not None for each in held)))
    assert num_held == [3, 1]
    assert [tensor[0].item() for tensor in tensors] == list(range(6))


class WithoutLargePages(mmap.mmap):
    """As of a system that knows none."""

    def madvise(self, *_: Any) -> None:
        raise OSError(22, "Invalid argument")


def test_a_system_without_large_pages_moves_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages.mmap, "mmap", WithoutLargePages)
    first, second = torch.zeros(5), torch.ones(5)
    move_to_large_pages([first, second], nothing)
    assert second.data_ptr() - first.data_ptr() == 64


def test_without_memory_they_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(large_pages.mmap, "mmap", full)
    tensor = torch.arange(5)
    place = tensor.data_ptr()
    move_to_large_pages([tensor], nothing)
    assert tensor.data_ptr() == place


def test_nothing_takes_nothing() -> None:
    move_to_large_pages([], nothing)
