"""EngineSpending: where the time and the blocks of one engine went, step by step, over all processes it had."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vllm_obs.telemetry.economics_blocks import BlockTime
from vllm_obs.telemetry.economics_step import StepCost
from vllm_obs.telemetry.records import EngineDescribed, StepAnswered, StepFailed, StepPlanned

MAX_OPEN_PLANS = 256
MAX_PAST_GENERATIONS = 32


@dataclass(slots=True)
class EngineTotals:
    """Nanoseconds and counts since the engine's first record. The four kinds of time are all the time there was.

    `step_ns` is inside of steps that had rows, `rowless_ns` inside of plans that had none, `idle_ns` between
    steps, `unknown_ns` where records are missing. `core_block_ns` is the integral of the active blocks as the core
    itself counts them, `held_block_ns` as they are known to be held by sequences. A lost step is one of which the
    plan or the end is not known.
    """

    step_ns: int = 0
    rowless_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    core_block_ns: int = 0
    held_block_ns: int = 0
    num_steps: int = 0
    num_failed_steps: int = 0
    num_lost_steps: int = 0
    num_wasted_rows: int = 0


class StepBill(NamedTuple):
    """A step that is over: its plan, and the time it took of the engine."""

    planned: StepPlanned
    num_ns: int


class EngineSpending:
    """One engine label. Of steps in flight together the oldest has the time, so that none counts twice."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.totals = EngineTotals()
        self.cost = StepCost()
        self.blocks = BlockTime()
        self.is_exact = True
        """Whether every change of blocks since the process began is known."""
        self.generation = 0
        self._past: deque[int] = deque(maxlen=MAX_PAST_GENERATIONS)
        self._at = 0
        self._is_cut = False
        self._plans: dict[int, StepPlanned] = {}
        self._last_planned: StepPlanned | None = None
        self._num_unheard_blocks = 0

    def is_past(self, generation: int) -> bool:
        """Whether that process of this engine is over."""
        return generation in self._past

    def begin(self, generation: int) -> None:
        """What comes now is from another process; sequences must have let go of the blocks of the one before."""
        self._past.append(self.generation)
        self.generation, self.is_exact = generation, True
        self.blocks, self._plans = BlockTime(), {}
        self._at, self._is_cut, self._last_planned, self._num_unheard_blocks = 0, False, None, 0

    def describe(self, described: EngineDescribed) -> None:
        """How its steps cost; its time begins."""
        self.cost = StepCost.of(described)
        self.advance(described.described_at)
        self._gap(described.described_at)

    def advance(self, at: int) -> None:
        """A record of the core says that it is so late; blocks stay as they are until then."""
        since = self.blocks.at
        self.blocks.advance(at)
        if since and at > since:
            num_held = self.blocks.num_active
            self.totals.held_block_ns += num_held * (at - since)
            self.totals.core_block_ns += max(0, num_held + self._num_unheard_blocks) * (at - since)

    def lost(self) -> None:
        """Records are missing from here on: of no step in flight is it known how it ended."""
        self.totals.num_lost_steps += len(self._plans)
        self._plans.clear()
        self._is_cut, self.is_exact, self._last_planned = True, False, None

    def planned(self, record: StepPlanned) -> None:
        """A step begins. One without rows is over with its plan."""
        self.advance(record.schedule_ended_at)
        self._last_planned = record
        if not self._plans:
            self._gap(record.schedule_begun_at)
            if not record.request_ids:
                self.totals.rowless_ns += self._pass(record.schedule_ended_at)
        if record.request_ids:
            self._plans[record.step] = record
            if len(self._plans) > MAX_OPEN_PLANS:
                del self._plans[next(iter(self._plans))]
                self.totals.num_lost_steps += 1

    def answered(self, record: StepAnswered) -> StepBill | None:
        """A step is over; None where its plan was lost."""
        self._compare(record.step)
        self.advance(record.updated_at)
        self.totals.num_wasted_rows += record.num_wasted_rows
        return self._bill(record.step, record.updated_at)

    def failed(self, record: StepFailed) -> StepBill | None:
        """A step broke off, and whatever else was in flight with it; None where it had no plan."""
        self.advance(record.failed_at)
        bill = self._bill(record.step, record.failed_at)
        self.totals.num_failed_steps += 1
        self._plans.clear()
        return bill

    def state(self) -> Any:
        """For a checkpoint."""
        plans = [list(plan) for plan in self._plans.values()]
        last = list(self._last_planned) if self._last_planned is not None else None
        moments = [self._at, self._is_cut, self.is_exact, self._num_unheard_blocks]
        past = [self.generation, list(self._past)]
        return [asdict(self.totals), list(self.cost), self.blocks.state(), past, moments, plans, last]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none."""
        totals, cost, blocks, past, moments, plans, last = state
        self.totals, self.cost = EngineTotals(**totals), StepCost(*cost)
        self.blocks.restore(blocks)
        self.generation = past[0]
        self._past.extend(past[1])
        self._at, self._is_cut, self.is_exact, self._num_unheard_blocks = moments
        self._plans = {plan.step: plan for plan in (StepPlanned(*each) for each in plans)}
        self._last_planned = StepPlanned(*last) if last is not None else None

    def _bill(self, step: int, over_at: int) -> StepBill | None:
        planned = self._plans.pop(step, None)
        if planned is None:
            self.totals.num_lost_steps += 1
            self._is_cut = True
            self._gap(over_at)
            return None
        num_ns = self._pass(over_at)
        self.totals.step_ns += num_ns
        self.totals.num_steps += 1
        return StepBill(planned, num_ns)

    def _gap(self, at: int) -> None:
        """Until then no step was under way, as far as is known."""
        num_ns = self._pass(at)
        if self._is_cut:
            self.totals.unknown_ns += num_ns
        else:
            self.totals.idle_ns += num_ns
        self._is_cut = False

    def _pass(self, at: int) -> int:
        """How long it is until that moment."""
        if not self._at:
            self._at = at
        num_ns = max(0, at - self._at)
        self._at += num_ns
        return num_ns

    def _compare(self, step: int) -> None:
        """With its plan's changes and no others the blocks are as the core saw them: how many are unheard of?

        After any answer they are not: it gives back what was held for it.
        """
        last, self._last_planned = self._last_planned, None
        if last is not None and last.step == step:
            self._num_unheard_blocks = last.num_active_blocks - self.blocks.num_active
