"""WaitingLine: one engine's waiting sequences in rank order, each with its reason at no cost a step for most."""

from bisect import bisect_right
from collections import Counter
from heapq import heapify, heappop, heappush
from operator import attrgetter, itemgetter
from typing import NamedTuple

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.wait_reasons import known_reason, reason_behind

FIRST_LOOK = "step_in_progress"
"""Until a step is planned for the first time after it came, a sequence waits for the step before to end."""

MAX_CHANGES = 4096
_MIN_DEAD_ENTRIES = 64
_UNSEEN = -1
_rank = attrgetter("rank")
_since = attrgetter("since")
_moment = itemgetter(0)

Rank = tuple[int, int]


class LineState(NamedTuple):
    """The reasons of those behind the head, (moment, reason), and from which of them on each has not caught up."""

    changes: list[tuple[int, str]]
    behind_from: dict[str, int]


class Waiter(NamedTuple):
    """Who waits, since when and at which rank. Its ledger may not have caught up with its reasons."""

    ledger: SequenceLedger
    rank: Rank
    since: int


class WaitingLine:
    """The queue as the scheduler has it. Only the head is looked at in each step.

    Those behind share one reason; its changes are kept in a list, and a waiting sequence catches up with the
    list when it leaves the line, becomes its head or is looked at. The list is cut at `MAX_CHANGES`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, str]] = []
        self._waiting: dict[str, Waiter] = {}
        self._behind_from: dict[str, int] = {}
        self._newcomers: list[str] = []
        self._changes: list[tuple[int, str]] = []
        self._behind = ""
        self._head: SequenceLedger | None = None
        self._held: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def head(self) -> SequenceLedger | None:
        """The sequence that is to be admitted next."""
        while self._heap:
            rank, request_id = self._heap[0]
            is_here = request_id in self._waiting and self._waiting[request_id].rank == rank
            if is_here and request_id not in self._held:
                return self._waiting[request_id].ledger
            heappop(self._heap)
        return None

    def waiters(self) -> list[Waiter]:
        """Who waits, in rank order."""
        return sorted(self._waiting.values(), key=_rank)

    def ledgers(self) -> list[SequenceLedger]:
        """The waiting sequences in rank order."""
        return [waiter.ledger for waiter in self.waiters()]

    def get(self, request_id: str) -> Waiter | None:
        """That sequence, if it waits."""
        return self._waiting.get(request_id)

    def longest_wait_ns(self, now: int) -> int:
        """For how long whoever waits longest has waited (monotonic ns), 0 where nobody does."""
        return now - min(map(_since, self._waiting.values()), default=now)

    def reason_of(self, ledger: SequenceLedger, at: int | None = None) -> str:
        """Why a sequence waits, or waited at a moment since its ledger caught up last; changes nothing."""
        index = self._behind_from.get(ledger.request_id, _UNSEEN)
        if index == _UNSEEN:
            return ledger.reason
        changes = self._changes
        last = len(changes) if at is None else bisect_right(changes, at, lo=index, key=_moment)
        return changes[last - 1][1] if last > index else ledger.reason

    def by_reason(self) -> Counter[str]:
        """How many wait for each reason; whoever has caught up or not, those behind the head share one."""
        behind = self._behind_from
        reasons = Counter(each.ledger.reason for name, each in self._waiting.items() if name not in behind)
        if behind:
            reasons[self._behind] += len(behind)
        return reasons

    def join(self, ledger: SequenceLedger, rank: Rank) -> None:
        """A sequence begins to wait; `planned` gives it its reason. Its ledger is in the waiting stage already."""
        self._waiting[ledger.request_id] = Waiter(ledger, rank, ledger.waiting_since)
        heappush(self._heap, (rank, ledger.request_id))
        self._newcomers.append(ledger.request_id)

    def rerank(self, ranks: dict[str, Rank]) -> None:
        """Order those who wait anew: the policy turned out to be another than was thought."""
        self._waiting = {key: each._replace(rank=ranks.get(key, each.rank)) for key, each in self._waiting.items()}
        self._rebuild()

    def leave(self, request_id: str) -> None:
        """A sequence waits no longer; its ledger is brought up to date and stays in the waiting stage."""
        waiter = self._waiting.get(request_id)
        if waiter is None:
            return
        self.catch_up(waiter.ledger)
        del self._waiting[request_id]
        self._held.discard(request_id)
        self._behind_from.pop(request_id, None)
        if self._head is waiter.ledger:
            self._head = None
        if len(self._heap) > 2 * len(self._waiting) + _MIN_DEAD_ENTRIES:
            self._rebuild()

    def hold(self, request_ids: list[str], reason: str, at: int) -> None:
        """At this moment just these wait beside the line for a reason of their own; the others stand in it."""
        held = {request_id for request_id in request_ids if request_id in self._waiting}
        for request_id in self._held - held:
            if request_id in self._waiting:
                heappush(self._heap, (self._waiting[request_id].rank, request_id))
                self._newcomers.append(request_id)
        for request_id in held - self._held:
            ledger = self._waiting[request_id].ledger
            self.catch_up(ledger)
            self._behind_from.pop(request_id, None)
            if self._head is ledger:
                self._head = None
            ledger.switch(ledger.stage, at, reason)
        self._held = held

    def planned(self, head_reason: str, at: int) -> None:
        """A step was planned without these (moment in ns): the head waits for this reason, the others inherit."""
        head = self.head
        if head is None:
            self._newcomers.clear()
            return
        head_reason = known_reason(head_reason) if head_reason else FIRST_LOOK
        self._set_behind(reason_behind(head_reason), at)
        if head is not self._head:
            self._change_head(head, at)
        head.switch(head.stage, at, head_reason)
        self._see_newcomers(at)

    def catch_up(self, ledger: SequenceLedger) -> None:
        """Give a waiting sequence the reasons that those behind the head had since it was looked at last."""
        index = self._behind_from.get(ledger.request_id, _UNSEEN)
        if index == _UNSEEN:
            return
        for at, reason in self._changes[index:]:
            ledger.switch(ledger.stage, at, reason)
        self._behind_from[ledger.request_id] = len(self._changes)

    def state(self) -> LineState:
        """For a checkpoint, beside the ledgers as they are."""
        return LineState(self._changes, self._behind_from)

    def restore(self, state: LineState) -> None:
        """Go on from a checkpoint in which the sequences that have joined waited already."""
        self._changes = list(state.changes)
        self._behind = self._changes[-1][1] if self._changes else ""
        known = {
            request_id: index for request_id, index in state.behind_from.items() if request_id in self._waiting
        }
        self._behind_from = known
        self._newcomers = [request_id for request_id in self._newcomers if request_id not in known]

    def _set_behind(self, reason: str, at: int) -> None:
        if reason == self._behind:
            return
        self._behind = reason
        if len(self._changes) >= MAX_CHANGES:
            self._cut_changes()
        self._changes.append((at, reason))

    def _cut_changes(self) -> None:
        for request_id in self._behind_from:
            self.catch_up(self._waiting[request_id].ledger)
        self._changes.clear()
        self._behind_from = dict.fromkeys(self._behind_from, 0)

    def _change_head(self, head: SequenceLedger, at: int) -> None:
        former, self._head = self._head, head
        if former is not None and former.request_id in self._waiting and former.request_id not in self._held:
            self._put_behind(former, at)
        self.catch_up(head)
        self._behind_from.pop(head.request_id, None)

    def _see_newcomers(self, at: int) -> None:
        for request_id in self._newcomers:
            waiter = self._waiting.get(request_id)
            if waiter is not None and waiter.ledger is not self._head and request_id not in self._held:
                self._put_behind(waiter.ledger, at)
        self._newcomers.clear()

    def _put_behind(self, ledger: SequenceLedger, at: int) -> None:
        ledger.switch(ledger.stage, at, self._behind)
        self._behind_from[ledger.request_id] = len(self._changes)

    def _rebuild(self) -> None:
        waiting = ((each.rank, name) for name, each in self._waiting.items() if name not in self._held)
        self._heap = list(waiting)
        heapify(self._heap)
