"""SpendingWindows: the sums as they were every five seconds of the last minutes, so that windows can be told."""

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from vllm_obs.telemetry.economics_costs import AccountTotals
from vllm_obs.telemetry.economics_engine import EngineTotals

WINDOWS: dict[str, int] = {"10s": 10, "1m": 60, "5m": 300, "run": 0}
"""Name → seconds; `run` is everything."""
GRID_NS = 5 * 10**9
MAX_SNAPSHOTS = 300 * 10**9 // GRID_NS + 4

_ACCOUNT_FIELDS = tuple(each.name for each in fields(AccountTotals) if each.name != "requests")
_ENGINE_FIELDS = tuple(each.name for each in fields(EngineTotals))


class Spending(NamedTuple):
    """Sums by account and by engine."""

    accounts: dict[str, AccountTotals]
    engines: dict[str, EngineTotals]


class Snapshot(NamedTuple):
    """The sums at a moment (monotonic ns)."""

    at: int
    spending: Spending


class SpendingWindows:
    """Snapshots on a grid of five seconds, so that a window begins up to five seconds early and says so."""

    def __init__(self, measure: Callable[[], Spending]) -> None:
        self._measure = measure
        self._snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self._due_at = 0
        self.first_at = 0
        """When the first thing was heard of."""

    def pass_time(self, now: int) -> None:
        """Called before what happened at `now` is counted: keep how it was at the times of the grid until then."""
        if now < self._due_at:
            return
        if not self.first_at:
            self.first_at = now
        elif self._due_at:
            spending = self._measure()
            self._snapshots.append(Snapshot(self._due_at, spending))
            newest_at = now // GRID_NS * GRID_NS
            if newest_at > self._due_at:
                self._snapshots.append(Snapshot(newest_at, spending))
        self._due_at = (now // GRID_NS + 1) * GRID_NS

    def since(self, seconds: int, now: int) -> Snapshot:
        """The newest snapshot that is so old; where the run is younger, or for 0 seconds, its beginning."""
        begun_at = now - seconds * 10**9
        if seconds:
            for snapshot in reversed(self._snapshots):
                if snapshot.at <= begun_at:
                    return snapshot
        return Snapshot(self.first_at, Spending({}, {}))

    def state(self) -> Any:
        """For a checkpoint."""
        return [self._due_at, self.first_at, [_plain(each) for each in self._snapshots]]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none."""
        self._due_at, self.first_at, snapshots = state
        self._snapshots.extend(_snapshot(each) for each in snapshots)


def spent_between(before: Spending, after: Spending) -> Spending:
    """What was added, by account and by engine; those that were not there before had nothing."""
    accounts = {
        name: _account_less(totals, before.accounts.get(name, AccountTotals()))
        for name, totals in after.accounts.items()
    }
    engines = {
        name: EngineTotals(*_less(_ENGINE_FIELDS, totals, before.engines.get(name, EngineTotals())))
        for name, totals in after.engines.items()
    }
    return Spending(accounts, engines)


def _account_less(after: AccountTotals, before: AccountTotals) -> AccountTotals:
    reasons = {reason: num - before.requests.get(reason, 0) for reason, num in after.requests.items()}
    return AccountTotals(*[*_less(_ACCOUNT_FIELDS, after, before), reasons])


def _less(names: tuple[str, ...], after: object, before: object) -> list[Any]:
    # A sequence whose account became known has left `unknown`.
    return [max(0, getattr(after, name) - getattr(before, name)) for name in names]


def _plain(snapshot: Snapshot) -> list[Any]:
    accounts = {
        name: [[getattr(totals, field) for field in _ACCOUNT_FIELDS], totals.requests]
        for name, totals in snapshot.spending.accounts.items()
    }
    engines = {
        name: [getattr(totals, field) for field in _ENGINE_FIELDS]
        for name, totals in snapshot.spending.engines.items()
    }
    return [snapshot.at, accounts, engines]


def _snapshot(plain: Any) -> Snapshot:
    at, accounts, engines = plain
    return Snapshot(
        at,
        Spending(
            {name: AccountTotals(*[*numbers, requests]) for name, (numbers, requests) in accounts.items()},
            {name: EngineTotals(*numbers) for name, numbers in engines.items()},
        ),
    )
