"""RecentRates: how fast totals grew lately, from what they were whenever somebody looked."""

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple

MAX_TOTALS = 512
WINDOW_NS = 10 * 10**9
MIN_STEP_NS = 500_000_000
"""Looks that are closer to one another than this are one: the kernel counts CPU time in hundredths of a second."""
NS = 1e9


class _Look(NamedTuple):
    at: int
    total: float


class RecentRates:
    """The looks at each total within the last 10 s, and the last one before; MAX_TOTALS totals at most."""

    def __init__(self) -> None:
        self._looks: OrderedDict[Hashable, deque[_Look]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._looks)

    def look(self, name: Hashable, total: float, now: int) -> float | None:
        """Growth a second since the oldest look that is kept; None at the first one. `now` is monotonic ns."""
        looks = self._looks.setdefault(name, deque())
        self._looks.move_to_end(name)
        if len(self._looks) > MAX_TOTALS:
            self._looks.popitem(last=False)
        if not looks or now - looks[-1].at >= MIN_STEP_NS:
            looks.append(_Look(now, total))
        while len(looks) > 2 and looks[1].at <= now - WINDOW_NS:
            looks.popleft()
        length = now - looks[0].at
        return max(0.0, total - looks[0].total) * NS / length if length >= MIN_STEP_NS else None
