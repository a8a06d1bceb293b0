"""Layers are built by threads that mean the same GPU as the one which asked for them."""

import threading

import pytest
import torch

from vllm_obs.engine.model.parallel_load import each_layer


def test_layers_come_in_order_and_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    assert each_layer(lambda number: (number, torch.get_num_threads()), 5) == [(number, 1) for number in range(5)]
    assert torch.get_num_threads() == before


def test_every_thread_takes_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[int, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: taken.setdefault(threading.get_ident(), gpu))
    built_by = each_layer(lambda _: threading.get_ident(), 4)
    assert {taken[thread] for thread in built_by} == {3}
    assert threading.get_ident() not in taken
