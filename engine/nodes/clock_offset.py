"""ClockOffset: how far another host's monotonic clock is from ours, told from pings as NTP does (RFC 5905, 8)."""

from collections import deque
from typing import NamedTuple

NUM_PINGS_KEPT = 32


class Exchange(NamedTuple):
    """A ping's four moments: sent and returned by our clock, received and answered by the other's (ns)."""

    sent_at: int
    received_at: int
    answered_at: int
    returned_at: int

    @property
    def round_trip_ns(self) -> int:
        """How long it was under way."""
        return (self.returned_at - self.sent_at) - (self.answered_at - self.received_at)

    @property
    def offset_ns(self) -> int:
        """How far the other clock is ahead of ours, if both ways took as long."""
        return ((self.received_at - self.sent_at) + (self.answered_at - self.returned_at)) // 2


class ClockOffset:
    """Of the last pings the fastest counts: whatever made the others slow was on one of the two ways."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=NUM_PINGS_KEPT)

    def add(self, exchange: Exchange) -> None:
        """Take a ping into account, unless its moments cannot be."""
        if exchange.round_trip_ns >= 0:
            self._exchanges.append(exchange)

    @property
    def is_known(self) -> bool:
        """Whether there was a ping at all."""
        return bool(self._exchanges)

    @property
    def offset_ns(self) -> int:
        """How far the other clock is ahead of ours; 0 before the first ping."""
        return min(self._exchanges, key=_round_trip).offset_ns if self._exchanges else 0

    @property
    def error_ns(self) -> int:
        """How far off that may be at most: half the fastest round trip."""
        return min(map(_round_trip, self._exchanges)) // 2 if self._exchanges else 0


def _round_trip(exchange: Exchange) -> int:
    return exchange.round_trip_ns
