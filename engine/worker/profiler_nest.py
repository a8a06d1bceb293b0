"""Nesting: which range is inside which, and what each took without what is inside it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vllm_obs.engine.worker.profiler_step import MEMORY, PHASE, Range


class Nested(NamedTuple):
    """A range in its place: within its parent, after what is before it. `own_ns` is the time of no part of it.

    `phase` is the phase of the step around it, "" between phases. `num_bytes` was allocated in it and in none of
    its parts.
    """

    range: Range
    phase: str
    own_ns: int
    num_bytes: int


class _Open:
    """A range whose end has not come."""

    __slots__ = ("ended_at", "inner_ns", "num_bytes", "phase", "range")

    def __init__(self, one: Range, phase: str) -> None:
        self.range = one
        self.phase = phase
        self.ended_at = one.ended_at
        self.inner_ns = 0
        self.num_bytes = 0

    def closed(self) -> Nested:
        own_ns = self.ended_at - self.range.begun_at - self.inner_ns
        return Nested(self.range, self.phase, max(0, own_ns), self.num_bytes)


def nested(ranges: Iterable[Range]) -> Iterator[Nested]:
    """Ranges of one track (in order of begin, whole before part), each once its end has come.

    Two clocks that are some microseconds apart make ranges overlap: what began later is cut where its parent ends.
    """
    stack: list[_Open] = []
    for one in ranges:
        while stack and stack[-1].ended_at <= one.begun_at:
            yield _pop(stack)
        if one.kind == MEMORY:
            if stack and one.num_bytes > 0:
                stack[-1].num_bytes += one.num_bytes
            continue
        stack.append(_Open(_within(stack, one), _phase(stack, one)))
    while stack:
        yield _pop(stack)


def _within(stack: list[_Open], one: Range) -> Range:
    if stack and one.ended_at > stack[-1].ended_at:
        return one._replace(ended_at=stack[-1].ended_at)
    return one


def _phase(stack: list[_Open], one: Range) -> str:
    if one.kind == PHASE:
        return one.name
    return stack[-1].phase if stack else ""


def _pop(stack: list[_Open]) -> Nested:
    last = stack.pop()
    if stack:
        stack[-1].inner_ns += last.ended_at - last.range.begun_at
    return last.closed()
