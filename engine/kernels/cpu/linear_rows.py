"""Rows cut into parts, as products share them out."""

from vllm_obs.engine.kernels.cpu.emit import I64, Emitter, Value


class Rows:
    """Rows cut into parts that are as even as can be."""

    def __init__(self, emit: Emitter, first: Value, num_rows: Value, num_parts: Value) -> None:
        self._emit, self._first = emit, first
        self._few = emit.build.sdiv(num_rows, num_parts)
        self._num_larger = emit.build.srem(num_rows, num_parts)

    def begin(self, part: Value) -> Value:
        """A part's first row."""
        emit = self._emit
        return emit.add(emit.add(self._first, emit.mul(part, self._few)), emit.minimum(part, self._num_larger))

    def size(self, part: Value) -> Value:
        """A part's rows."""
        is_larger = self._emit.build.icmp_signed("<", part, self._num_larger)
        return self._emit.add(self._few, self._emit.build.zext(is_larger, I64))
