"""Economics: a view that charges every step's time and every block's time to the sequences that caused it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm_obs.telemetry.economics_costs import UNKNOWN, AccountTotals, CostBook, RequestCost
from vllm_obs.telemetry.economics_engine import EngineSpending, EngineTotals, StepBill
from vllm_obs.telemetry.economics_step import split_ns
from vllm_obs.telemetry.economics_windows import Spending, SpendingWindows
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import (
    BlocksChanged,
    EngineDescribed,
    Record,
    RequestKeyframe,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
)
from vllm_obs.telemetry.view import BaseView, Source

MAX_ENGINES = 256
STATE_VERSION = 2

EngineFinder = Callable[[str], EngineState | None]


def no_engine(_label: str) -> EngineState | None:
    """Nobody knows of any engine."""
    return None


class Economics(BaseView):
    """What requests, accounts and engines have spent. `accounts` are shown from the start.

    Of an engine that lost records nothing is charged for the steps that are missing, and blocks only as far as it
    is known who holds them; `find_engine` tells that again once keyframes have told everything.
    """

    def __init__(self, find_engine: EngineFinder = no_engine, accounts: Sequence[str] = ()) -> None:
        self.book = CostBook(accounts)
        self.engines: dict[str, EngineSpending] = {}
        self.windows = SpendingWindows(self.spending)
        self.num_lost = 0
        """Records of engines that were overwritten unread."""
        self._find_engine = find_engine
        self._handlers: dict[type[Record], Callable[[EngineSpending, Any], None]] = {
            EngineDescribed: EngineSpending.describe,
            RequestTaken: self._taken,
            StepPlanned: self._planned,
            StepAnswered: self._answered,
            StepFailed: self._failed,
            BlocksChanged: self._blocks_changed,
            RequestKeyframe: self._keyframe,
            RequestReleased: self._released,
        }
        self.record_kinds = (RequestSubmitted, *self._handlers)

    def record(self, source: Source, record: Record) -> None:
        """Charge what a core tells, to the account that an API server names."""
        kind = type(record)
        if kind is RequestSubmitted:
            assert isinstance(record, RequestSubmitted)
            self.book.submitted(record.request_id, record.account, record.external_id)
            return
        handle = self._handlers.get(kind)
        if handle is not None:
            engine = self._engine(source)
            if engine is not None:
                handle(engine, record)

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """Count a sequence; it is over when it has no blocks any more."""
        cost = self.book.closed(ledger)
        if not self._holds_blocks(cost):
            self.book.finish(cost)

    def lost(self, source: Source, num: int) -> None:
        """Records of a core are missing: what they told cannot be charged to anybody."""
        if source.engine and source.role.startswith("EngineCore"):
            self.num_lost += num
            engine = self._engine(source)
            if engine is not None:
                engine.lost()

    def tick(self, now: int) -> None:
        """About once a second, at `now` (monotonic ns)."""
        self.windows.pass_time(now)
        for cost in self.book.orphans(now):
            self._finish(cost)

    @property
    def is_exact(self) -> bool:
        """Whether everything that any engine spent is charged to somebody."""
        return not any(_has_gaps(engine) for engine in self.engines.values())

    def block_ns(self, cost: RequestCost) -> float:
        """The block-nanoseconds of a sequence until its engine's last record."""
        engine = self.engines.get(cost.engine)
        return cost.block_ns + (engine.blocks.held_ns(cost.request_id) if engine is not None else 0.0)

    def step_share(self, cost: RequestCost) -> float:
        """Its share (0 to 1) of its engine's step time between its being taken and released."""
        engine = self.engines.get(cost.engine)
        if engine is None:
            return 0.0
        until_ns = cost.engine_ns_after if cost.released_at else engine.totals.step_ns
        return cost.step_ns / max(1, until_ns - cost.engine_ns_before, cost.step_ns)

    def spending(self) -> Spending:
        """All sums, live sequences included; those of which only the core has told are under `unknown`."""
        accounts = self.book.sums()
        for cost in self.book.live.values():
            totals = accounts.setdefault(self.book.name(cost), AccountTotals())
            totals.step_ns += cost.step_ns
            totals.block_ns += self.block_ns(cost)
        engines = {label: _copy(engine.totals) for label, engine in self.engines.items()}
        return Spending(accounts, engines)

    def known_accounts(self) -> dict[str, AccountTotals]:
        """By account, without what is not known to be anybody's yet."""
        return {name: totals for name, totals in self.spending().accounts.items() if name != UNKNOWN}

    def state(self) -> Any:
        """For a checkpoint."""
        engines = {label: engine.state() for label, engine in self.engines.items()}
        return [STATE_VERSION, self.book.state(), engines, self.windows.state(), self.num_lost]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none of this version's."""
        version, book, engines, windows, self.num_lost = state
        if version != STATE_VERSION:
            raise ValueError(f"economics of version {version}; this version reads {STATE_VERSION}")
        self.book.restore(book)
        for label, engine_state in engines.items():
            self.engines.setdefault(label, EngineSpending(label)).restore(engine_state)
        self.windows.restore(windows)

    def _engine(self, source: Source) -> EngineSpending | None:
        """The engine that wrote a record; None for a process that another has followed."""
        label = source.engine or "0"
        engine = self.engines.get(label)
        if engine is None:
            if len(self.engines) >= MAX_ENGINES:
                return None
            engine = self.engines[label] = EngineSpending(label)
            engine.generation = source.generation
        if engine.generation != source.generation:
            if engine.is_past(source.generation):
                return None
            self._let_go(engine, engine.blocks.holders)
            engine.begin(source.generation)
        return engine

    def _taken(self, engine: EngineSpending, record: RequestTaken) -> None:
        cost = self.book.get(record.request_id)
        cost.engine, cost.engine_ns_before = engine.label, engine.totals.step_ns

    def _planned(self, engine: EngineSpending, record: StepPlanned) -> None:
        self.windows.pass_time(record.schedule_ended_at)
        engine.planned(record)

    def _answered(self, engine: EngineSpending, record: StepAnswered) -> None:
        if not engine.is_exact:
            self._catch_up(engine)
        self._charge(engine, engine.answered(record))

    def _failed(self, engine: EngineSpending, record: StepFailed) -> None:
        self._charge(engine, engine.failed(record))

    def _charge(self, engine: EngineSpending, bill: StepBill | None) -> None:
        """The hot loop: a row costs a look-up and an addition."""
        if bill is None:
            return
        live = self.book.live
        shares = split_ns(bill.num_ns, engine.cost.weights(bill.planned))
        for request_id, num_ns in zip(bill.planned.request_ids, shares, strict=True):
            cost = live.get(request_id)
            if cost is not None and cost.engine:
                cost.step_ns += num_ns
            else:
                self.book.add_steps(self._cost(engine, request_id), num_ns)

    def _blocks_changed(self, engine: EngineSpending, record: BlocksChanged) -> None:
        """All blocks are handed out before any is taken back, as in a step one may be both."""
        rows = [*zip(record.request_ids, record.allocated, record.freed, strict=True)]
        for request_id, allocated, _ in rows:
            if allocated:
                self._cost(engine, request_id)
                engine.blocks.hold(request_id, allocated)
        for request_id, _, freed in rows:
            if freed:
                self._settle(engine, request_id, engine.blocks.free(request_id, freed))

    def _keyframe(self, engine: EngineSpending, record: RequestKeyframe) -> None:
        if not engine.blocks.has_table(record.request_id, record.block_ids):
            self._settle(engine, record.request_id, engine.blocks.put_table(record.request_id, record.block_ids))

    def _released(self, engine: EngineSpending, record: RequestReleased) -> None:
        engine.advance(record.released_at)
        cost = self._cost(engine, record.request_id)
        cost.released_at, cost.engine_ns_after = record.released_at, engine.totals.step_ns
        if not engine.is_exact:
            # That its blocks went back may be among what was lost.
            self._let_go(engine, [record.request_id])

    def _settle(self, engine: EngineSpending, request_id: str, block_ns: float) -> None:
        """A sequence gave blocks back; one that has ended, and has none left, is over."""
        cost = self._cost(engine, request_id)
        self.book.add_blocks(cost, block_ns)
        if cost.is_closed and not engine.blocks.is_held_by(request_id):
            self.book.finish(cost)

    def _let_go(self, engine: EngineSpending, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._settle(engine, request_id, engine.blocks.put_table(request_id, []))

    def _catch_up(self, engine: EngineSpending) -> None:
        """After a loss: as soon as the run's state knows all blocks, or who lives, take that over."""
        known = self._find_engine(engine.label)
        if known is None or known.source.generation != engine.generation:
            return
        if known.blocks.is_exact:
            tables = known.blocks.now().tables
            for request_id, table in tables.items():
                if not engine.blocks.has_table(request_id, table):
                    self._settle(engine, request_id, engine.blocks.put_table(request_id, table))
            self._let_go(engine, [each for each in engine.blocks.holders if each not in tables])
            engine.is_exact = True
        elif known.builder.roster.is_exact:
            live = known.builder.roster.ledgers
            self._let_go(engine, [each for each in engine.blocks.holders if each not in live])

    def _cost(self, engine: EngineSpending, request_id: str) -> RequestCost:
        cost = self.book.get(request_id)
        if not cost.engine:
            cost.engine, cost.engine_ns_before = engine.label, engine.totals.step_ns
        return cost

    def _holds_blocks(self, cost: RequestCost) -> bool:
        engine = self.engines.get(cost.engine)
        return engine is not None and engine.blocks.is_held_by(cost.request_id)

    def _finish(self, cost: RequestCost) -> None:
        engine = self.engines.get(cost.engine)
        if engine is not None:
            self._let_go(engine, [cost.request_id])
        self.book.finish(cost)


def _copy(totals: EngineTotals) -> EngineTotals:
    return EngineTotals(*(getattr(totals, name) for name in EngineTotals.__slots__))


def _has_gaps(engine: EngineSpending) -> bool:
    return not engine.is_exact or bool(engine.totals.unknown_ns or engine.totals.num_lost_steps)
