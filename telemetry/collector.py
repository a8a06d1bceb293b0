"""Collector: has Python's garbage collector look once at what stays, instead of at all of it again and again."""

import gc

YOUNG_NS = 10 * 10**9
"""So often whatever is new is looked at, and then left alone: nearly all is history, which is in no cycle."""
ALL_NS = 600 * 10**9
"""So often everything is: what lived for longer than YOUNG_NS and was a cycle is found then."""
MANY_OBJECTS = 200_000
"""So many more objects than before are looked at at once all the same."""


class Collector:
    """Sets up this process's collector, and works when it is told the time.

    The history of thousands of steps is a million objects, and by Python's own rule all of them are looked at each
    time their number has grown by a quarter.
    """

    def __init__(self, now: int) -> None:
        gc.set_threshold(MANY_OBJECTS)
        gc.freeze()
        self._young_at, self._all_at = now + YOUNG_NS, now + ALL_NS

    def tick(self, now: int) -> None:
        """About once a second, at `now` (monotonic ns)."""
        if now >= self._all_at:
            gc.unfreeze()
            gc.collect()
            self._all_at = now + ALL_NS
        elif now >= self._young_at:
            gc.collect(0)
        else:
            return
        # What was freed is gone all the same: only the search for cycles passes over what is frozen.
        gc.freeze()
        self._young_at = now + YOUNG_NS
