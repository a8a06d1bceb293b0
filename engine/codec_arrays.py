"""Arrays on the wire: small ones inside the payload, large ones as raw frames that the payload refers to."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview

INLINE_MAX_BYTES = 4096
"""Up to here a copy into the payload costs less than a frame of its own."""
MAX_BUFFERS = 1024
"""Raw frames of one message; further arrays are sent inside the payload."""
MAX_DIMENSIONS = 4
MAX_DIMENSION = 2**31 - 1

_CODES = {np.dtype(np.int32): "i4", np.dtype(np.float32): "f4"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class ArrayWriter:
    """Collects the raw frames of one message while its payload is packed."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def write(self, array: npt.NDArray[Any]) -> list[Any]:
        """What stands for the array in the payload: [bytes or frame index, dtype code, shape]."""
        data = np.ascontiguousarray(array)
        code = _CODES.get(data.dtype)
        if code is None:
            raise TypeError(f"arrays of {data.dtype} do not travel")
        if data.nbytes <= INLINE_MAX_BYTES or len(self.buffers) >= MAX_BUFFERS:
            return [data.tobytes(), code, list(array.shape)]
        self.buffers.append(data.data.cast("B"))
        return [len(self.buffers) - 1, code, list(array.shape)]


class ArrayReader:
    """Hands out the raw frames of one message, each once and in order, as arrays of their own memory."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers
        self._num_read = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether every raw frame was used."""
        return self._num_read == len(self._buffers)

    def read(self, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The array a payload's [data, dtype code, shape] stands for; ValueError when they do not agree.

        Nothing is allocated from a declared size: the shape must account for the bytes that really came.
        """
        if type(value) is not list or len(value) != 3:
            raise ValueError("an array is [data, dtype, shape]")
        source, code, shape = value
        if type(code) is not str or _DTYPES.get(code) != dtype:
            raise ValueError(f"expected an array of {dtype}")
        data = source if type(source) is bytes else self._take(source)
        _check_shape(shape, len(data), dtype.itemsize)
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()

    def _take(self, index: Any) -> Buffer:
        if type(index) is not int or index != self._num_read or index >= len(self._buffers):
            raise ValueError("raw frames are used once, in order")
        self._num_read += 1
        return self._buffers[index]


def _check_shape(shape: Any, num_bytes: int, item_bytes: int) -> None:
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a shape has at most {MAX_DIMENSIONS} dimensions")
    if any(type(size) is not int or not 0 <= size <= MAX_DIMENSION for size in shape):
        raise ValueError(f"a dimension is a number up to {MAX_DIMENSION}")
    if prod(shape) * item_bytes != num_bytes:
        raise ValueError("the shape does not match the data")
