"""Builds a model's layers several at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_MAX_BUILDERS = 8
"""Each has a layer's weights in several forms at hand, so more would cost memory."""

T = TypeVar("T")


def each_layer(build: Callable[[int], T], num_layers: int) -> list[T]:
    """`build(number)` of every layer, each by one thread: numpy dequantises on one, and packing is short work."""
    num_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            min(num_threads, _MAX_BUILDERS), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(build, range(num_layers)))
    finally:
        torch.set_num_threads(num_threads)
