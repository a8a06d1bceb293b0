"""EngineState: one engine process as its records tell it: description, queues, steps, blocks and sequences."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.block_view import BlockLevels
from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.ledger_builder import LedgerBuilder
from vllm_obs.telemetry.prefix_book import PrefixBook
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    BlocksKeyframe,
    EngineDescribed,
    EngineStateChanged,
    OutputsTaken,
    Record,
    RequestKeyframe,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.run_snapshot import AWAKE
from vllm_obs.telemetry.sequence_book import SequenceBook
from vllm_obs.telemetry.step_history import StepFacts, StepHistory, not_before_its_plan, share_columns
from vllm_obs.telemetry.view import Source, View

STEP_KINDS: frozenset[type[Record]] = frozenset({StepPlanned, StepAnswered})
"""Kinds whose columns are shared from step to step."""
MAX_OPEN_STEPS = 256
MAX_EARLY_STEPS = 64
WORKER_GRACE_NS = 2 * 10**9
"""So long after a step is over its closing waits for ranks that have not recorded their part."""


class EngineState:
    """One engine process, from its first record on. `state` is its word for itself (awake, paused, …)."""

    def __init__(self, source: Source, book: SequenceBook, view: View, laws: Invariants) -> None:
        self.source = source
        self.label = source.engine or "0"
        self.described: EngineDescribed | None = None
        self.state = AWAKE
        self.state_since = 0
        self.steps = StepHistory()
        self.blocks = BlockMap()
        self.prefixes = PrefixBook()
        self.builder = LedgerBuilder(self.label, self.steps, book, laws)
        self.last_planned: StepPlanned | None = None
        self.last_answered: StepAnswered | None = None
        self.is_gone = False
        self.open_steps: dict[int, StepFacts] = {}
        self.first_sure_step: int | None = 0
        """From this step on every plan was seen; None after a loss, until the next plan."""
        self._view = view
        self._laws = laws
        self._early: OrderedDict[int, list[WorkerStep | OutputsTaken]] = OrderedDict()
        self._levels_step = 0
        self._free_at = 0
        """When its only rank was through with the last step that it told of."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            EngineDescribed: self._describe,
            EngineStateChanged: self._change_state,
            RequestTaken: self._taken,
            RequestReleased: self._released,
            StepPlanned: self._planned,
            StepAnswered: self._answered,
            StepFailed: self._failed,
            BlocksChanged: self._blocks_changed,
            BlocksCached: self._blocks_cached,
            BlocksKeyframe: self._blocks_keyframe,
            RequestKeyframe: self._request_keyframe,
        }

    @property
    def num_running(self) -> int:
        """Sequences that run now, idle engine or not."""
        return self.builder.roster.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that wait now, preempted ones included."""
        return self.builder.roster.num_waiting

    @property
    def block_levels(self) -> BlockLevels:
        """Its blocks by state: as the map has them, or as the last plan saw them while the map lacks records.

        Where nothing runs nothing is held; an engine that is gone has none at all.
        """
        if self.is_gone:
            return BlockLevels(0, 0, 0)
        if self.blocks.is_exact or self.last_planned is None:
            return self.blocks.levels
        planned = self.last_planned
        num_active, num_cached = planned.num_active_blocks, planned.num_cached_blocks
        if not self.num_running:
            num_active, num_cached = 0, num_active + num_cached
        return BlockLevels(num_active, num_cached, planned.num_free_blocks)

    def apply(self, record: Record) -> None:
        """A record of the core."""
        self._handlers[type(record)](record)

    def shared(self, record: Record) -> Record:
        """A plan or an answer, to be applied next, with the lists of the step before where they are equal."""
        if isinstance(record, StepPlanned):
            return share_columns(record, self.last_planned)
        if isinstance(record, StepAnswered):
            record = share_columns(record, self.last_answered)
            facts = self.open_steps.get(record.step)
            ids = facts.planned.request_ids if facts is not None else None
            if ids is not None and record.request_ids is not ids and record.request_ids == ids:
                record = record._replace(request_ids=ids)
        return record

    def add_worker(self, record: WorkerStep, is_elsewhere: bool = False) -> None:
        """A rank recorded its part of a step; on another host by a clock that is known only roughly."""
        facts = self.steps.get(record.step)
        if facts is not None and is_elsewhere:
            record = not_before_its_plan(record, facts.planned)
        if facts is None:
            self._keep_early(record.step, record)
        elif record.received_at >= facts.planned.schedule_begun_at:
            facts.workers.append(record)
            if self._num_ranks == 1:
                facts.free_at, self._free_at = self._free_at, record.sampled_at
            self._close_if_whole(facts)

    def add_outputs(self, record: OutputsTaken) -> None:
        """An API server took a step's message."""
        facts = self.steps.get(record.step)
        if facts is None:
            self._keep_early(record.step, record)
        elif record.taken_at >= facts.planned.schedule_begun_at:
            facts.outputs.append(record)

    def lost(self) -> None:
        """Records of the core are missing from here on."""
        self.builder.lost()
        self.blocks.lost()
        self.prefixes.begin(self.blocks.step + 1)
        self.steps.lost()
        self.first_sure_step = None
        self._levels_step = 0

    def gone(self) -> None:
        """The process is dead and all that it recorded was applied."""
        self.is_gone = True
        for facts in list(self.open_steps.values()):
            self._close(facts)
        self.builder.gone()
        self.blocks.gone(self.last_planned.step if self.last_planned is not None else 0)

    def tick(self, now: int) -> None:
        """Close what waited too long for a rank."""
        for facts in list(self.open_steps.values()):
            if facts.is_over and now > facts.over_at + WORKER_GRACE_NS:
                self._close(facts)

    @property
    def _num_shards(self) -> int:
        """Ranks to a stage; 0 where there is one stage."""
        described = self.described
        return described.world_size // described.num_stages if described and described.num_stages > 1 else 0

    @property
    def _num_ranks(self) -> int:
        return self.described.world_size if self.described is not None else 1

    def _describe(self, record: EngineDescribed) -> None:
        self.described = record
        self.blocks.resize(record.num_blocks)

    def _change_state(self, record: EngineStateChanged) -> None:
        self.state, self.state_since = record.state, record.changed_at
        if record.state == AWAKE:
            self.builder.resumed()
        else:
            self.builder.paused(record.changed_at)

    def _planned(self, record: StepPlanned) -> None:
        self._check_order(record)
        self._check_levels(record)
        self.last_planned = record
        facts = StepFacts(self.label, record, num_shards=self._num_shards)
        self.steps.add(facts)
        self.builder.planned(record)
        if not self.blocks.is_exact and self.builder.roster.is_exact:
            self.blocks.keep_only(set(self.builder.roster.ledgers))
        self.open_steps[record.step] = facts
        if len(self.open_steps) > MAX_OPEN_STEPS:
            self._close(next(iter(self.open_steps.values())))
        self._add_early(facts)
        self._close_if_whole(facts)

    def _answered(self, record: StepAnswered) -> None:
        facts = self.open_steps.get(record.step)
        self.last_answered = record
        if facts is None or facts.is_over:
            self._misordered(record)
        self._check_map(record)
        self.builder.answered(record)
        if facts is not None and not facts.is_over:
            facts.answered = record
            self._close_if_whole(facts)

    def _failed(self, record: StepFailed) -> None:
        self._levels_step = 0
        self.builder.failed(record)
        facts = self.open_steps.get(record.step)
        # A step whose planning failed was never planned.
        if facts is not None:
            facts.failed = record
            self._close(facts)

    def _taken(self, record: RequestTaken) -> None:
        self.builder.taken(record)
        self.blocks.begin(record.request_id)

    def _released(self, record: RequestReleased) -> None:
        self._levels_step = 0
        self.builder.released(record)
        self.blocks.forget(record.request_id)

    def _blocks_changed(self, record: BlocksChanged) -> None:
        self.blocks.changed(record)
        self.prefixes.changed(record, self.blocks)

    def _blocks_cached(self, record: BlocksCached) -> None:
        self.blocks.cached(record)
        self.prefixes.cached(record)

    def _blocks_keyframe(self, record: BlocksKeyframe) -> None:
        num_wrong = self.blocks.blocks_keyframe(record)
        if num_wrong:
            last = record.first_block + len(record.reference_counts) - 1
            evidence = f"{num_wrong} of the blocks {record.first_block} to {last} differ from the keyframe"
            self._laws.report("block_map", self.builder.over_at, f"step {record.step}", evidence)

    def _request_keyframe(self, record: RequestKeyframe) -> None:
        self.builder.keyframe(record)
        if self.blocks.request_keyframe(record):
            evidence = "its block table differs from the keyframe"
            self._laws.report("block_map", self.builder.over_at, record.request_id, evidence)

    def _check_order(self, record: StepPlanned) -> None:
        last = self.last_planned
        if last is not None and record.step <= last.step:
            self._laws.report("step_order", record.schedule_ended_at, f"step {record.step}", f"after {last.step}")
        if self.first_sure_step is None:
            self.first_sure_step = record.step

    def _misordered(self, record: StepAnswered) -> None:
        step, at = record.step, record.updated_at
        if self.steps.get(step) is not None:
            self._laws.report("step_order", at, f"step {step}", "answered again when it was over")
        elif self.first_sure_step is not None and step >= self.first_sure_step:
            self._laws.report("step_order", at, f"step {step}", "answered without having been planned")

    def _check_levels(self, record: StepPlanned) -> None:
        self._levels_step = record.step
        num_levels = record.num_active_blocks + record.num_cached_blocks + record.num_free_blocks
        if self.described is not None and num_levels != self.described.num_blocks:
            evidence = (
                f"{record.num_active_blocks} active + {record.num_cached_blocks} cached + "
                f"{record.num_free_blocks} free of {self.described.num_blocks}"
            )
            self._laws.report("blocks", record.schedule_ended_at, f"step {record.step}", evidence)

    def _check_map(self, record: StepAnswered) -> None:
        """When a plan's own block changes have come and nothing else, the map has the levels that the plan saw.

        Whoever leaves meanwhile gives blocks back, and so does the answer of another step in flight.
        """
        planned, levels_step = self.last_planned, self._levels_step
        self._levels_step = 0
        if planned is None or planned.step != record.step or levels_step != record.step:
            return
        levels = (planned.num_active_blocks, planned.num_cached_blocks, planned.num_free_blocks)
        if self.blocks.is_exact and self.blocks.levels != levels:
            evidence = f"active, cached, free: {tuple(self.blocks.levels)} in the map, {levels} in the core"
            self._laws.report("block_map", record.updated_at, f"step {record.step}", evidence)

    def _keep_early(self, step: int, record: WorkerStep | OutputsTaken) -> None:
        """Another process's ring was read further than the core's."""
        if self.last_planned is not None and step <= self.last_planned.step:
            return
        self._early.setdefault(step, []).append(record)
        if len(self._early) > MAX_EARLY_STEPS:
            self._early.popitem(last=False)

    def _add_early(self, facts: StepFacts) -> None:
        for record in self._early.pop(facts.step, ()):
            if isinstance(record, WorkerStep):
                self.add_worker(record)
            else:
                self.add_outputs(record)

    def _close_if_whole(self, facts: StepFacts) -> None:
        if facts.is_over and (len(facts.workers) >= self._num_ranks or not facts.planned.request_ids):
            self._close(facts)

    def _close(self, facts: StepFacts) -> None:
        self.open_steps.pop(facts.step, None)
        if not facts.is_closed:
            facts.is_closed = True
            self._view.step_closed(facts)
