"""Builds a model's layers several at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_MAX_BUILDERS = 8
"""Each has a layer's weights in several forms at hand, so more would cost memory."""
_NO_GPU = -1

T = TypeVar("T")


def each_layer(build: Callable[[int], T], num_layers: int) -> list[T]:
    """`build(number)` of every layer, each by one thread: numpy dequantises on one, and packing is short work."""
    num_threads = torch.get_num_threads()
    has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpu = torch.cuda.current_device() if has_gpu else _NO_GPU
    try:
        with ThreadPoolExecutor(
            min(num_threads, _MAX_BUILDERS), initializer=_begin_builder, initargs=(gpu,)
        ) as pool:
            return list(pool.map(build, range(num_layers)))
    finally:
        torch.set_num_threads(num_threads)


def _begin_builder(gpu: int) -> None:
    """Which GPU "cuda" means is a matter of each thread: without this it would be the first, whatever the rank."""
    torch.set_num_threads(1)
    if gpu != _NO_GPU:
        torch.cuda.set_device(gpu)
