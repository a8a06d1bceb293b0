"""StallLog: the stalls of a run as its records tell them, and when a sequence was last sent to an engine."""

from collections import deque
from typing import Any, NamedTuple

import msgspec

from vllm_obs.telemetry.records import Record, RequestSubmitted, StallBegun, StallEnded
from vllm_obs.telemetry.view import BaseView, Source

MAX_STALLS = 64


class Stall(NamedTuple):
    """One stall; `ended_at` is 0 while it lasts, or where nobody was left to see it end."""

    begun: StallBegun
    ended_at: int = 0


class StallLog(BaseView):
    """The last MAX_STALLS of the run, whichever Observer found them; of a recording those that it holds."""

    record_kinds = (RequestSubmitted, StallBegun, StallEnded)

    def __init__(self) -> None:
        self.submitted_at = 0
        """When a sequence was last sent to an engine (monotonic ns)."""
        self._stalls: deque[Stall] = deque(maxlen=MAX_STALLS)

    def all(self) -> list[Stall]:
        """Oldest first."""
        return list(self._stalls)

    def lasting(self) -> list[StallBegun]:
        """Those whose end nobody has recorded."""
        return [stall.begun for stall in self._stalls if not stall.ended_at]

    def state(self) -> Any:
        """For a checkpoint."""
        return [self.submitted_at, list(self._stalls)]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none."""
        submitted_at, stalls = state
        self._stalls = deque(msgspec.convert(stalls, list[Stall]), maxlen=MAX_STALLS)
        self.submitted_at = int(submitted_at)

    def record(self, source: Source, record: Record) -> None:
        """Take notice of the few kinds that matter here."""
        kind = type(record)
        if kind is RequestSubmitted:
            assert isinstance(record, RequestSubmitted)
            self.submitted_at = max(self.submitted_at, record.submitted_at)
        elif kind is StallBegun:
            assert isinstance(record, StallBegun)
            self._stalls.append(Stall(record))
        elif kind is StallEnded:
            assert isinstance(record, StallEnded)
            self._end(record)

    def _end(self, record: StallEnded) -> None:
        for place, stall in enumerate(self._stalls):
            begun = stall.begun
            if (begun.engine, begun.pid, begun.stuck_at) == (record.engine, record.pid, record.stuck_at):
                self._stalls[place] = Stall(begun, record.ended_at)
