"""LoopClock: how long an engine's loop had a step to do and how long it had none, both always growing."""

from typing import Any

SETTLED_NS = 10**9
"""At a scrape time is accounted for up to this long ago: what happened later may not have been read yet."""


class LoopClock:
    """Every moment from the engine's beginning on is busy or idle (ns), overlapping steps counted once."""

    def __init__(self) -> None:
        self.busy_ns = 0
        self.idle_ns = 0
        self._until = 0

    def begin(self, at: int) -> None:
        """The engine is there from now on, idle."""
        self._until = at

    def work_begins(self, at: int) -> None:
        """A step begins while none is in progress."""
        if self._until:
            self.idle_ns += max(0, at - self._until)
        self._until = max(self._until, at)

    def work_ends(self, at: int) -> None:
        """A step is over."""
        self.busy_ns += max(0, at - self._until)
        self._until = max(self._until, at)

    def look(self, now: int, is_busy: bool) -> None:
        """Account for the time up to shortly before now; a step that hangs is busy, no step for long is idle."""
        settled = now - SETTLED_NS
        if self._until and settled > self._until:
            (self.work_ends if is_busy else self.work_begins)(settled)

    def state(self) -> Any:
        """In plain values."""
        return [self.busy_ns, self.idle_ns, self._until]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self.busy_ns, self.idle_ns, self._until = map(int, state)
