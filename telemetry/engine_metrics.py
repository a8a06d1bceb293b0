"""EngineMetrics: one engine's steps, levels, cache and tokens, counted from its core's records."""

from collections import deque
from typing import Any

from vllm_obs.telemetry.cache_config import CONFIG_ENGINE, cache_config_values
from vllm_obs.telemetry.catalogue_vllm import SLEEP_STATES
from vllm_obs.telemetry.eager_reasons import execution_of
from vllm_obs.telemetry.engine_levels import AWAKE, GONE, EngineFinder, EngineLevels
from vllm_obs.telemetry.live_sequences import LiveSequence, LiveSequences
from vllm_obs.telemetry.loop_clock import LoopClock
from vllm_obs.telemetry.metric_store import EngineSeries, MetricStore
from vllm_obs.telemetry.pending_steps import PendingStep, PendingSteps
from vllm_obs.telemetry.prompt_metrics import ComputedRow, PromptMetrics
from vllm_obs.telemetry.quantiles import Quantiles
from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineStateChanged,
    RequestKeyframe,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_phases import phase_ns

SECONDS_PER_NS = 1e-9
MAX_PAST_GENERATIONS = 32


class EngineMetrics:
    """What one engine label shows, over all processes that ever had it. `pid` is that of the last one."""

    def __init__(
        self, series: EngineSeries, store: MetricStore, quantiles: Quantiles, find_engine: EngineFinder
    ) -> None:
        self.series = series
        self.live = LiveSequences()
        self.pid = 0
        self._store = store
        self._quantiles = quantiles
        self._prompts = PromptMetrics(series)
        self._levels = EngineLevels(series.engine, find_engine)
        self._clock = LoopClock()
        self._pending = PendingSteps()
        self._described: EngineDescribed | None = None
        self._generation = 0
        self._past: deque[int] = deque(maxlen=MAX_PAST_GENERATIONS)
        self._estimates = [
            (
                series.value(f"vllm_obs_estimated_{name}_total"),
                series.value(f"vllm:estimated_{name}_per_gpu_total"),
            )
            for name in ("flops", "read_bytes", "write_bytes")
        ]

    @property
    def num_steps_in_flight(self) -> int:
        """Steps that have not answered."""
        return len(self._pending) if self._levels.is_there else 0

    @property
    def num_waiting(self) -> int:
        """Sequences in the core's waiting queue."""
        engine = self._levels.engine
        return engine.num_waiting if engine is not None else 0

    def follow(self, generation: int, pid: int) -> bool:
        """What comes now is from the process with this ring; if it is another, the one before is gone.

        False where that process is past: what is read of it late must not take the levels of the one that lives.
        """
        if generation == self._generation:
            return True
        if generation in self._past:
            return False
        self._past.append(self._generation)
        self._generation, self.pid = generation, pid
        self.live, self._pending = LiveSequences(), PendingSteps()
        self._clock.begin(0)
        self._levels.sleep_state = AWAKE
        return True

    def die(self) -> None:
        """Its process ended: all levels are zero. What it still wrote may yet be read, and counts."""
        self._levels.sleep_state = GONE
        self.pid = 0

    def described(self, record: EngineDescribed) -> None:
        """The engine is up and idle."""
        self._described = record
        self._clock.begin(record.described_at)
        self._levels.described(record)
        family = self._store.families["vllm:cache_config_info"]
        for labels in [labels for labels in family.series if labels[CONFIG_ENGINE] == self.series.engine]:
            del family.series[labels]
        family.value(*cache_config_values(self.series.engine, record)).set(1)

    def state_changed(self, record: EngineStateChanged) -> None:
        """It sleeps or wakes; one that is paused is awake, one that has died neither."""
        if self._levels.is_there:
            self._levels.sleep_state = record.state if record.state in SLEEP_STATES else AWAKE

    def taken(self, record: RequestTaken) -> None:
        """A sequence waits."""
        sequence = LiveSequence(record.request_id, record.num_prompt_tokens, skips_cache=record.skips_cache)
        self.live.add(sequence)
        self.observe_delay("request", record.taken_at - record.submitted_at)

    def released(self, record: RequestReleased) -> None:
        """A sequence left; what steps in flight compute for it is wasted."""
        self._pending.drop([record.request_id])
        self.live.remove(record.request_id)

    def keyframe(self, record: RequestKeyframe) -> None:
        """What is true of a live sequence, should records about it have been lost."""
        sequence = self.live.get(record.request_id)
        if sequence is None:
            sequence = LiveSequence(record.request_id, record.num_prompt_tokens)
            sequence.num_counted_tokens = min(record.num_computed_tokens, record.num_prompt_tokens)
            sequence.num_high_tokens = record.num_computed_tokens
            self.live.add(sequence)
        sequence.num_blocks, sequence.num_computed_tokens = len(record.block_ids), record.num_computed_tokens

    def planned(self, record: StepPlanned) -> None:
        """A step begins: who came and who went, and what each row will have."""
        self._pending.drop(record.preempted_ids)
        self._prompts.preempted(record, self.live)
        looks_up = self._described is None or self._described.enable_prefix_caching
        self._prompts.admitted(record, self.live, looks_up)
        if record.request_ids:
            if not self._pending:
                self._clock.work_begins(record.schedule_begun_at)
            self._pending.add(record)
            self._advance(record)

    def answered(self, record: StepAnswered) -> None:
        """A step's results are used."""
        self._clock.work_ends(record.updated_at)
        self.series.value("vllm_obs_steps_total", "answered").add()
        self.series.value("vllm_obs_wasted_rows_total").add(record.num_wasted_rows)
        pending = self._pending.pop(record.step)
        if pending is not None:
            self._count_step(pending, record)

    def failed(self, record: StepFailed) -> None:
        """A step broke off."""
        self._clock.work_ends(record.failed_at)
        self._pending.pop(record.step)
        self.series.value("vllm_obs_steps_total", "failed").add()

    def step_closed(self, step: StepFacts) -> None:
        """All ranks have told of a step."""
        histogram = self.series.histogram
        for phase, num_ns in phase_ns(step).items():
            histogram("vllm_obs_step_seconds", phase).observe(num_ns * SECONDS_PER_NS)
        for worker in step.workers:
            self._ran(worker)

    def observe_delay(self, direction: str, num_ns: int) -> None:
        """Something took so long from process to process; by the clock of another host it may be less than 0."""
        self.series.histogram("vllm_obs_ipc_delay_seconds", direction).observe(max(0, num_ns) * SECONDS_PER_NS)

    def refresh(self, now: int) -> None:
        """Set every level to what is true now (monotonic ns)."""
        engine = self._levels.engine
        if engine is not None:
            # A release may have been lost: the roster finds out, and whom it does not have is not counted here.
            self.live.keep_only(engine.builder.roster.ledgers)
        self._levels.show(self.series, self.live, now)
        if self._levels.is_there:
            self._clock.look(now, bool(self._pending))
        for state, num_ns in (("busy", self._clock.busy_ns), ("idle", self._clock.idle_ns)):
            self.series.value("vllm_obs_engine_loop_seconds_total", state).raise_to(num_ns * SECONDS_PER_NS)

    def state(self) -> Any:
        """What it must know to go on, in plain values."""
        described = list(self._described) if self._described is not None else None
        parts = [part.state() for part in self._parts()]
        return [self._generation, list(self._past), self.pid, described, parts]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self._generation, past, self.pid, described, states = state
        self._past.extend(past)
        self._described = EngineDescribed(*described) if described is not None else None
        for part, part_state in zip(self._parts(), states, strict=True):
            part.restore(part_state)

    def _parts(self) -> tuple[Any, ...]:
        return (self._levels, self.live, self._pending, self._clock)

    def _ran(self, worker: WorkerStep) -> None:
        execution = execution_of(worker.graph_size, worker.eager_reason)
        self.series.value("vllm_obs_forward_passes_total", execution).add()
        if worker.num_padded_tokens:
            self.series.value("vllm_obs_padded_tokens_total").add(worker.num_padded_tokens)
        if worker.device_ns:
            self.series.value("vllm_obs_step_device_seconds_total").add(worker.device_ns * SECONDS_PER_NS)

    def _advance(self, record: StepPlanned) -> None:
        sequences = self.live.rows(record.request_ids)
        rows = zip(sequences, record.num_scheduled_tokens, record.num_computed_tokens, strict=True)
        for sequence, num_tokens, num_computed in rows:
            if sequence is not None:
                sequence.num_computed_tokens = num_computed + num_tokens
        if any(record.num_new_blocks):
            for sequence, num_blocks in zip(sequences, record.num_new_blocks, strict=True):
                if sequence is not None:
                    sequence.num_blocks += num_blocks

    def _count_step(self, pending: PendingStep, record: StepAnswered) -> None:
        self.series.histogram("vllm:iteration_tokens_total").observe(pending.num_used_tokens)
        planned, dropped = pending.planned, pending.dropped
        sequences = self.live.rows(planned.request_ids)
        rows = zip(sequences, planned.num_computed_tokens, planned.num_scheduled_tokens, strict=True)
        for sequence, begin, num_tokens in rows:
            if sequence is None or (dropped and sequence.request_id in dropped):
                continue
            # Neither prompt that is to be counted nor recomputed: as a rule it decodes.
            if begin >= sequence.num_high_tokens and sequence.num_counted_tokens >= sequence.num_prompt_tokens:
                sequence.num_high_tokens = begin + num_tokens
            else:
                self._prompts.computed(ComputedRow(sequence, begin, begin + num_tokens))
        num_ns = record.updated_at - pending.planned.schedule_begun_at
        self._quantiles.observe("step", self.series.engine, num_ns * SECONDS_PER_NS, record.updated_at)
        if self._described is not None:
            self._estimate(pending.planned, self._described)

    def _estimate(self, planned: StepPlanned, described: EngineDescribed) -> None:
        """By the model's size: weights are read once a step, keys and values up to each row's last token."""
        num_tokens = sum(planned.num_scheduled_tokens)
        num_read = sum(planned.num_computed_tokens) + num_tokens
        amounts = (
            num_tokens * described.flops_per_token,
            described.weight_bytes + num_read * described.kv_bytes_per_token,
            num_tokens * described.kv_bytes_per_token,
        )
        num_ranks = max(described.world_size, 1)
        for (total, per_rank), amount in zip(self._estimates, amounts, strict=True):
            total.number += amount
            per_rank.number += amount / num_ranks
