"""CostBook: what each sequence and each account has cost; live sequences, the last that are over, and sums."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from vllm_obs.telemetry.ledger import SequenceLedger

MAX_LIVE = 65_536
MAX_OVER = 10_000
MAX_OVER_KEPT = 256
"""So many of those that are over, the last ones, outlive the Observer; a checkpoint is made every few seconds."""
MAX_ACCOUNTS = 64
NO_ACCOUNT = "none"
"""The account of requests to a server without keys."""
OTHER = "other"
"""Stands for accounts beyond the bound, and for sequences whose submission was lost."""
UNKNOWN = "unknown"
"""Stands for a live sequence of which only the core has told so far."""
ORPHAN_GRACE_NS = 15 * 10**9
"""So long after its release a sequence that nobody submitted goes to `other`."""


@dataclass(slots=True)
class RequestCost:
    """One sequence: its shares of steps (ns), and what it got of blocks that it has given back (block-ns).

    `engine_ns_before` and `engine_ns_after` are the engine's step time when it was taken and released.
    """

    request_id: str
    account: str = UNKNOWN
    engine: str = ""
    step_ns: int = 0
    block_ns: float = 0.0
    engine_ns_before: int = 0
    engine_ns_after: int = 0
    released_at: int = 0
    is_closed: bool = False
    is_over: bool = False
    external_id: str = ""
    """The client's label."""


@dataclass(slots=True)
class AccountTotals:
    """What the sequences of an account took; tokens and requests are of those that have ended."""

    step_ns: int = 0
    block_ns: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_recomputed_tokens: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    """By how they ended."""

    @property
    def num_requests(self) -> int:
        """Sequences that have ended."""
        return sum(self.requests.values())

    def copy(self) -> "AccountTotals":
        """As they are now."""
        return replace(self, requests=dict(self.requests))


class CostBook:
    """Costs by sequence. What is over is in its account's sum; what lives is counted when somebody asks."""

    def __init__(self, accounts: Sequence[str] = ()) -> None:
        self.live: dict[str, RequestCost] = {}
        self.over: OrderedDict[str, RequestCost] = OrderedDict()
        self._sums: dict[str, AccountTotals] = {name: AccountTotals() for name in accounts[:MAX_ACCOUNTS]}

    def find(self, request_id: str) -> RequestCost | None:
        """What that sequence has cost; None where it is not known any more."""
        return self.live.get(request_id) or self.over.get(request_id)

    def get(self, request_id: str) -> RequestCost:
        """The same, begun if there is none."""
        return self.live.get(request_id) or self.over.get(request_id) or self._begin(request_id)

    def all(self) -> Iterator[RequestCost]:
        """Every kept one."""
        yield from self.live.values()
        yield from self.over.values()

    def submitted(self, request_id: str, account: str, external_id: str = "") -> None:
        """An API server told whose sequence it is."""
        cost = self.get(request_id)
        cost.external_id = external_id
        if not cost.is_over:
            cost.account = account or NO_ACCOUNT

    def add_steps(self, cost: RequestCost, num_ns: int) -> None:
        """A share of a step."""
        cost.step_ns += num_ns
        if cost.is_over:
            self._sum(cost.account).step_ns += num_ns

    def add_blocks(self, cost: RequestCost, block_ns: float) -> None:
        """Blocks were given back."""
        cost.block_ns += block_ns
        if cost.is_over:
            self._sum(cost.account).block_ns += block_ns

    def closed(self, ledger: SequenceLedger) -> RequestCost:
        """Count how a sequence ended and its tokens; one whose API server died ended with an error."""
        cost = self.get(ledger.request_id)
        cost.is_closed = True
        if not cost.is_over and not ledger.is_orphan:
            cost.account = ledger.submitted.account or NO_ACCOUNT
        ended, account = ledger.ended, self._sum(cost.account)
        reason = ended.finish_reason if ended is not None else "error"
        account.requests[reason] = account.requests.get(reason, 0) + 1
        account.num_prompt_tokens += ledger.submitted.num_prompt_tokens
        account.num_cached_tokens += ledger.num_cached_tokens
        account.num_generation_tokens += ended.num_output_tokens if ended else ledger.num_output_tokens
        account.num_recomputed_tokens += ledger.num_recomputed_tokens
        return cost

    def finish(self, cost: RequestCost) -> None:
        """Nothing more is expected of it."""
        if cost.is_over:
            return
        self.live.pop(cost.request_id, None)
        cost.account = self._name(OTHER if cost.account == UNKNOWN else cost.account)
        cost.is_over = True
        account = self._sum(cost.account)
        account.step_ns += cost.step_ns
        account.block_ns += cost.block_ns
        self.over[cost.request_id] = cost
        if len(self.over) > MAX_OVER:
            self.over.popitem(last=False)

    def orphans(self, now: int) -> list[RequestCost]:
        """Those that were released long ago and that nobody has submitted."""
        live = self.live.values()
        return [
            cost
            for cost in live
            if cost.account == UNKNOWN and cost.released_at and now > cost.released_at + ORPHAN_GRACE_NS
        ]

    def sums(self) -> dict[str, AccountTotals]:
        """By account, what is over."""
        return {name: totals.copy() for name, totals in self._sums.items()}

    def name(self, cost: RequestCost) -> str:
        """The account under which a sequence is shown."""
        return cost.account if cost.account == UNKNOWN else self._name(cost.account)

    def state(self) -> Any:
        """For a checkpoint: sums, live sequences, and the last that are over."""
        last = list(islice(reversed(self.over.values()), MAX_OVER_KEPT))
        return [self._sums, list(self.live.values()), last[::-1]]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none."""
        sums, live, over = state
        self._sums |= msgspec.convert(sums, dict[str, AccountTotals])
        self.live = {cost.request_id: cost for cost in msgspec.convert(live, list[RequestCost])}
        self.over = OrderedDict((cost.request_id, cost) for cost in msgspec.convert(over, list[RequestCost]))

    def _begin(self, request_id: str) -> RequestCost:
        if len(self.live) >= MAX_LIVE:
            self.finish(next(iter(self.live.values())))
        return self.live.setdefault(request_id, RequestCost(request_id))

    def _name(self, account: str) -> str:
        return account if account in self._sums or len(self._sums) < MAX_ACCOUNTS else OTHER

    def _sum(self, account: str) -> AccountTotals:
        name = self._name(OTHER if account == UNKNOWN else account)
        return self._sums.setdefault(name, AccountTotals())
