"""CoreRoster: the sequences that are in one engine's core, and how that is known again after a loss."""

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.waiting_line import Rank, WaitingLine


class CoreRoster:
    """The ledgers by id, those of them that wait in `line`; each keeps the rank it came with.

    The scheduler orders by arrival, or under its priority policy by priority first. Which policy it has is not
    recorded: a sequence that is admitted before an earlier one because of its priority shows it.
    After a loss `is_exact` is False until the sequences heard of since are as many as the core says it has.
    """

    def __init__(self) -> None:
        self.ledgers: dict[str, SequenceLedger] = {}
        self.line = WaitingLine()
        self.num_arrivals = 0
        self.by_priority = False
        self._arrivals: dict[str, int] = {}
        self.heard: set[str] | None = None
        """After a loss those heard of since, until they are all there are; None while nothing is in doubt."""

    @property
    def is_exact(self) -> bool:
        """Whether it has every sequence of the core and no other."""
        return self.heard is None

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones included."""
        return len(self.line)

    @property
    def num_running(self) -> int:
        """Sequences that were admitted and not preempted since."""
        return len(self.ledgers) - len(self.line)

    def add(self, ledger: SequenceLedger) -> None:
        """The core has this sequence."""
        request_id = ledger.request_id
        self.ledgers[request_id] = ledger
        self._arrivals[request_id] = self.num_arrivals
        self.num_arrivals += 1
        self.hear(request_id)

    def hear(self, request_id: str) -> None:
        """A record named the sequence as living."""
        if self.heard is not None:
            self.heard.add(request_id)

    def wait(self, ledger: SequenceLedger) -> None:
        """The sequence begins to wait, or waits again, at its rank."""
        self.line.join(ledger, self._rank(ledger))

    def admit(self, ledger: SequenceLedger) -> None:
        """The sequence waits no longer."""
        head = self.line.head
        if head is not None and head is not ledger and not self.by_priority:
            self._learn_policy(ledger, head)
        self.line.leave(ledger.request_id)

    def remove(self, request_id: str) -> SequenceLedger | None:
        """The core has released the sequence."""
        ledger = self.ledgers.pop(request_id, None)
        if ledger is not None:
            self.line.leave(request_id)
            del self._arrivals[request_id]
        if self.heard is not None:
            self.heard.discard(request_id)
        return ledger

    def lost(self) -> None:
        """Records are missing from here on."""
        self.heard = set()

    def recount(self, num_live: int) -> list[SequenceLedger]:
        """The core says how many it has; those that it no longer has, when that has become certain."""
        heard = self.heard
        if heard is None or len(heard) != num_live:
            return []
        self.heard = None
        return [ledger for request_id, ledger in self.ledgers.items() if request_id not in heard]

    def restore(self, ledgers: list[SequenceLedger], arrivals: dict[str, int], by_priority: bool) -> None:
        """Go on with the ledgers of a checkpoint."""
        self.by_priority = by_priority
        self.num_arrivals = max(arrivals.values(), default=-1) + 1
        self._arrivals = dict(arrivals)
        self.ledgers = {ledger.request_id: ledger for ledger in ledgers}
        for ledger in ledgers:
            if ledger.stage in ("queue", "preempted"):
                self.wait(ledger)

    def arrivals(self) -> dict[str, int]:
        """The number of each live sequence's arrival, for a checkpoint."""
        return dict(self._arrivals)

    def _rank(self, ledger: SequenceLedger) -> Rank:
        return (ledger.submitted.priority if self.by_priority else 0, self._arrivals[ledger.request_id])

    def _learn_policy(self, admitted: SequenceLedger, head: SequenceLedger) -> None:
        if admitted.submitted.priority < head.submitted.priority:
            self.by_priority = True
            self.line.rerank({ledger.request_id: self._rank(ledger) for ledger in self.line.ledgers()})
