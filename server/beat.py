"""The beat of a process: what looks after a server at rest does so in the same moments, to wake it seldom."""

import math
import time

_BEGUN_AT = time.monotonic()
"""Processes that were not started at once do not wake at once either."""
_TRIFLE_MS = 1e-3
_LEAST_SHARE = 0.1
"""A timer may come a little early; what is left of its period then is no period."""


def until_beat(period_seconds: float) -> float:
    """Seconds to the next of the moments that are so far apart, at most a tenth of that more than the period.

    Periods that divide each other have moments in common. In whole milliseconds, rounded up: uvloop would round to
    the nearest, and timers for one moment would come in two.
    """
    left = period_seconds - (time.monotonic() - _BEGUN_AT) % period_seconds
    seconds = left if left > _LEAST_SHARE * period_seconds else left + period_seconds
    return math.ceil(seconds * 1e3 - _TRIFLE_MS) / 1e3
