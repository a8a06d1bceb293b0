"""What attention knows of a query between keys: relative to which score its shares are, and what is summed up."""

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

QUERY_BYTES = 24
"""A query is three int64: token, position, row of the tables."""

_LOWEST = -1e30
"""The largest score before any: finite, so that its difference to minus infinity is not NaN."""
_VECTORS = 2
"""Of a row beside its sums."""


def query_state_bytes(machine: Machine, shape: CacheShape) -> int:
    """Room for what is known of a query, of all heads that share a key head."""
    return shape.num_sharing * _row_bytes(machine.num_lanes, shape)


def _row_bytes(num_lanes: int, shape: CacheShape) -> int:
    return 4 * (_VECTORS * num_lanes + shape.head_dim)


class Taken:
    """Row `row` of a state in memory: one query of one head.

    A vector of the score that shares are relative to, one of sums of shares, and the sums of values.
    """

    def __init__(self, emit: Emitter, shape: CacheShape, state: Value, row: int) -> None:
        self._emit = emit
        self._vector_bytes = 4 * emit.num_lanes
        self._state = emit.at(state, row * _row_bytes(emit.num_lanes, shape))

    @classmethod
    def clear(cls, emit: Emitter, shape: CacheShape, state: Value, num_queries: int) -> None:
        """Nothing has been taken in."""
        num_rows = num_queries * shape.num_sharing

        def clear(place: Value, _: list[Value]) -> None:
            emit.store(emit.zeros, state, place)

        emit.loop(0, num_rows * _row_bytes(emit.num_lanes, shape), 4 * emit.num_lanes, clear)
        for row in range(num_rows):
            cls(emit, shape, state, row).store_highest(emit.constant(_LOWEST))

    def load_highest(self) -> Value:
        """The score that shares are relative to, in all lanes."""
        return self._emit.load(self._state, 0, self._emit.vector)

    def store_highest(self, value: Value) -> None:
        """The counterpart of `load_highest`."""
        self._emit.store(value, self._state, 0)

    def load_weight(self) -> Value:
        """Lane by lane the sum of shares."""
        return self._emit.load(self._state, self._vector_bytes, self._emit.vector)

    def store_weight(self, value: Value) -> None:
        """The counterpart of `load_weight`."""
        self._emit.store(value, self._state, self._vector_bytes)

    def load_sum(self, offset: int) -> Value:
        """A vector of the sums of values, so many bytes from their beginning."""
        return self._emit.load(self._state, _VECTORS * self._vector_bytes + offset, self._emit.vector)

    def store_sum(self, value: Value, offset: int) -> None:
        """The counterpart of `load_sum`."""
        self._emit.store(value, self._state, _VECTORS * self._vector_bytes + offset)
