"""LedgerBuilder: turns what one engine's core recorded into the stages of its sequences, a step at a time."""

from collections.abc import Iterable

from vllm_obs.telemetry.core_roster import CoreRoster
from vllm_obs.telemetry.core_submission import submission_taken, unknown_submission
from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ledger_laws import check_released
from vllm_obs.telemetry.records import (
    RequestKeyframe,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
)
from vllm_obs.telemetry.sequence_book import SequenceBook
from vllm_obs.telemetry.step_history import StepHistory
from vllm_obs.telemetry.wait_reasons import known_reason
from vllm_obs.telemetry.waiting_line import FIRST_LOOK


class LedgerBuilder:
    """The state machine of a sequence inside the core, for all sequences of one engine process.

    A step costs a pass over its rows, when it is planned and when it is answered, and nothing for those that wait
    behind the head of the queue.
    """

    def __init__(self, engine: str, steps: StepHistory, book: SequenceBook, laws: Invariants) -> None:
        self.roster = CoreRoster()
        self._engine = engine
        self._steps = steps
        self._book = book
        self._laws = laws
        self.answered_step = 0
        self.over_at = 0
        """When the last step that is over was: its tokens sampled, or its failure (monotonic ns)."""
        self.is_after_loss = False
        """Whether records were lost and none has come since."""
        self._awaited_stalls: dict[str, str] = {}
        self._paused_at = self._planned_at = 0
        self._level: tuple[int, int] | None = None

    def taken(self, record: RequestTaken) -> None:
        """The core queued a sequence."""
        self._end_loss(record.taken_at)
        if record.request_id in self.roster.ledgers:
            self._laws.report("in_core", record.taken_at, record.request_id, "taken twice")
            return
        ledger = self._known(record.request_id)
        if ledger is None:
            ledger = self._new_orphan(submission_taken(record), "submit", record.submitted_at)
        self._book.trust(ledger)
        ledger.engine, ledger.taken_at = self._engine, record.taken_at
        self._wait_in_inbox(ledger, record)
        reason = "paused" if self._paused_at else "grammar" if record.awaits_grammar else FIRST_LOOK
        ledger.switch("queue", record.taken_at, reason)
        self.roster.add(ledger)
        self.roster.wait(ledger)
        self._level = None

    def planned(self, record: StepPlanned) -> None:
        """A step was planned: who runs, who comes back, who has to wait."""
        at = self._planned_at = record.schedule_ended_at
        self._end_loss(at)
        for request_id in record.preempted_ids:
            self._preempt(self._find(request_id, at), at)
        if self._awaited_stalls:
            for request_id in record.request_ids:
                self._awaited_stalls.pop(request_id, None)
        self._run_rows(record)
        for request_id, reason in zip(record.left_out_ids, record.left_out_reasons, strict=False):
            self._leave_out(self._find(request_id, at), known_reason(reason), at)
        self.roster.line.hold(record.grammar_ids, "grammar", at)
        if not self._paused_at or record.head_reason:
            self.roster.line.planned(record.head_reason, at)
        self._level = (record.step, record.num_running + record.num_waiting)
        if not self.roster.is_exact:
            self._recount(record)

    def answered(self, record: StepAnswered) -> None:
        """A step gave its tokens."""
        self._check_level(record.step, record.updated_at)
        at, find = record.sampled_at, self.roster.ledgers.get
        by_gap: dict[int, list[SequenceLedger]] = {}
        same_at = 0
        same: list[SequenceLedger] = []
        for request_id, num_tokens in zip(record.request_ids, record.num_new_tokens, strict=False):
            ledger = find(request_id)
            if ledger is None:
                ledger = self._find(request_id, at)
            if ledger.stage != "decode":
                self._begin_decode(ledger, at)
            if not num_tokens or ledger.is_closed:
                continue
            last_at = ledger.last_token_at
            if last_at:
                if last_at != same_at:
                    same_at, same = last_at, by_gap.setdefault(at - last_at, [])
                same.append(ledger)
            else:
                ledger.first_token_at = at
                self._book.first_token(ledger, at)
            ledger.last_token_at = at
            ledger.num_output_tokens += num_tokens
            if num_tokens > 1:
                by_gap.setdefault(0, []).extend([ledger] * (num_tokens - 1))
        for gap_ns, ledgers in by_gap.items():
            self._book.tokens(ledgers, gap_ns, at)
        self._over(record.step, at)

    def failed(self, record: StepFailed) -> None:
        """A step broke off."""
        self._level = None
        self._over(record.step, record.failed_at)

    def released(self, record: RequestReleased) -> None:
        """A sequence left the core."""
        self._level = None
        self._end_loss(record.released_at)
        self._awaited_stalls.pop(record.request_id, None)
        if record.request_id not in self.roster.ledgers:
            self._find(record.request_id, record.released_at)
        ledger = self.roster.remove(record.request_id)
        assert ledger is not None
        ledger.released = record
        check_released(ledger, self._laws)
        self._book.leave_core(ledger)

    def keyframe(self, record: RequestKeyframe) -> None:
        """A sequence lives; after a loss it may be news."""
        if record.request_id not in self.roster.ledgers and not self.roster.is_exact:
            ledger = self._find(record.request_id, self.over_at)
            ledger.submitted = ledger.submitted._replace(num_prompt_tokens=record.num_prompt_tokens)
            if not record.is_running and ledger.request_id not in self.roster.line:
                ledger.switch("queue", max(self.over_at, ledger.since), FIRST_LOOK)
                self.roster.wait(ledger)
        self.roster.hear(record.request_id)

    def paused(self, at: int) -> None:
        """Nobody is admitted from this moment on."""
        self._paused_at = self._paused_at or at
        self.roster.line.planned("paused", at)

    def resumed(self) -> None:
        """Scheduling goes on. If no step was planned meanwhile, whoever ran was held up as well.

        From the end of its last step on, which may have been under way, or may be yet.
        """
        if self._paused_at and self._planned_at <= self._paused_at:
            for ledger in self._running():
                if ledger.last_step <= self.answered_step:
                    ledger.switch("stalled", max(self._paused_at, self.over_at, ledger.since), "paused")
        self._paused_at = 0

    def lost(self) -> None:
        """Records of this core are missing from here on: what is claimed of its sequences is not exact."""
        for ledger in self.roster.ledgers.values():
            ledger.is_partial = True
        self.roster.lost()
        self._level = None
        self.is_after_loss = True

    def gone(self) -> None:
        """The core's process is dead: its sequences keep the stage they are in until they are ended."""
        self._end_loss(0)
        for request_id in list(self.roster.ledgers):
            ledger = self.roster.remove(request_id)
            if ledger is not None:
                self._book.leave_core(ledger)

    def _wait_in_inbox(self, ledger: SequenceLedger, record: RequestTaken) -> None:
        """The core takes nobody while it is inside a step: tell that part of the way to it from the rest."""
        if ledger.stage != "submit":
            return
        for _, begun_at, ended_at in self._steps.within(record.submitted_at, record.taken_at):
            if ended_at > ledger.since:
                ledger.switch("submit", max(begun_at, ledger.since), FIRST_LOOK)
                ledger.switch("submit", ended_at)

    def _run_rows(self, record: StepPlanned) -> None:
        """The hot loop: a row that decodes costs a look-up and a few attributes."""
        step, at, num_rows = record.step, record.schedule_ended_at, len(record.request_ids)
        find = self.roster.ledgers.get
        rows = zip(record.request_ids, record.num_scheduled_tokens, record.num_computed_tokens, strict=False)
        for request_id, num_tokens, num_computed in rows:
            ledger = find(request_id)
            if ledger is None:
                ledger = self._find(request_id, at)
            if ledger.stage != "decode":
                self._begin_row(ledger, record, num_tokens, num_computed)
                if ledger.is_closed:
                    continue
            ledger.last_step = step
            ledger.num_steps += 1
            ledger.sum_company += num_rows
            if num_rows > ledger.peak_company:
                ledger.peak_company = num_rows
            runs = ledger.step_runs
            if runs:
                run = runs[-1]
                num_steps = run.num_steps
                if (
                    run.num_tokens == num_tokens
                    and run.first_step + num_steps == step
                    and run.num_computed + num_steps * num_tokens == num_computed
                ):
                    run.num_steps = num_steps + 1
                    continue
            ledger.run_in(step, num_tokens, num_computed)

    def _begin_row(self, ledger: SequenceLedger, record: StepPlanned, num_tokens: int, num_computed: int) -> None:
        """A row that was not decoding: it may be admitted, come back, or compute more of its prompt."""
        at = record.schedule_ended_at
        if ledger.request_id in self.roster.line:
            self.roster.admit(ledger)
        if ledger.is_closed:
            return
        if ledger.stage == "preempted":
            ledger.active_stage = "recompute"
        if not ledger.first_step:
            ledger.first_step = record.step
        ledger.switch(ledger.active_stage, at)
        if ledger.active_stage != "decode":
            ledger.compute(num_computed, num_computed + num_tokens)

    def _begin_decode(self, ledger: SequenceLedger, at: int) -> None:
        if ledger.request_id in self.roster.line:
            # Only after a loss: the plan that admitted it was not seen.
            self.roster.admit(ledger)
        ledger.active_stage = "decode"
        if ledger.stage != "stalled":
            ledger.switch("decode", at)

    def _preempt(self, ledger: SequenceLedger, at: int) -> None:
        if ledger.step_runs:
            run = ledger.step_runs[-1]
            num_computed = run.num_computed + run.num_steps * run.num_tokens
            ledger.num_computed_high = max(ledger.num_computed_high, num_computed)
        ledger.num_preemptions += 1
        ledger.switch("preempted", at, FIRST_LOOK)
        if ledger.request_id not in self.roster.line:
            self.roster.wait(ledger)

    def _leave_out(self, ledger: SequenceLedger, reason: str, at: int) -> None:
        if ledger.stage == "stalled":
            ledger.switch("stalled", at, reason)
        elif ledger.last_step > self.answered_step:
            # A row of it is still under way; it stalls when that has answered.
            self._awaited_stalls[ledger.request_id] = reason
        else:
            ledger.switch("stalled", max(self.over_at, ledger.since), reason)

    def _over(self, step: int, at: int) -> None:
        self.answered_step, self.over_at = step, at
        for request_id, reason in list(self._awaited_stalls.items()):
            ledger = self.roster.ledgers.get(request_id)
            if ledger is None or ledger.last_step <= step:
                del self._awaited_stalls[request_id]
                if ledger is not None:
                    ledger.switch("stalled", max(at, ledger.since), reason)

    def _check_level(self, step: int, at: int) -> None:
        """Where nobody came or went between a plan and its answer the core has those whom the plan counted."""
        level, self._level = self._level, None
        if level is None or level[0] != step or not self.roster.is_exact:
            return
        num_live = len(self.roster.ledgers)
        if num_live != level[1]:
            self._laws.report("in_core", at, f"step {step}", f"the core has {level[1]} sequences, we {num_live}")

    def _recount(self, record: StepPlanned) -> None:
        for ids in (record.request_ids, record.left_out_ids, record.preempted_ids):
            self._hear(ids)
        for ledger in self.roster.recount(record.num_running + record.num_waiting):
            self.roster.remove(ledger.request_id)
            self._book.leave_core(ledger)

    def _hear(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.roster.hear(request_id)

    def _running(self) -> list[SequenceLedger]:
        line = self.roster.line
        return [ledger for ledger in self.roster.ledgers.values() if ledger.request_id not in line]

    def _end_loss(self, at: int) -> None:
        """The first record after a loss: who was submitted before it may have been in the core unheard."""
        if self.is_after_loss:
            self.is_after_loss = False
            self._book.doubt_untaken(at)

    def _find(self, request_id: str, at: int) -> SequenceLedger:
        """The sequence that a record names; one that the core never said it took was lost, or breaks a law."""
        found = self.roster.ledgers.get(request_id)
        if found is not None:
            return found
        if self.roster.is_exact:
            self._laws.report("in_core", at, request_id, "named by the core but never taken")
        ledger = self._known(request_id) or self._new_orphan(unknown_submission(request_id, at), "queue", at)
        ledger.engine, ledger.is_partial = self._engine, True
        self.roster.add(ledger)
        return ledger

    def _known(self, request_id: str) -> SequenceLedger | None:
        """A sequence that was submitted. One that closed before the core took it only counts as being there."""
        book = self._book
        closed = book.ended.get(request_id)
        if closed is not None:
            return SequenceLedger(closed.submitted, is_closed=True)
        return book.live.get(request_id) or book.orphans.get(request_id)

    def _new_orphan(self, submitted: RequestSubmitted, stage: str, at: int) -> SequenceLedger:
        reason = FIRST_LOOK if stage == "queue" else ""
        ledger = SequenceLedger(submitted, stage=stage, reason=reason, since=at)
        self._book.add_orphan(ledger)
        return ledger
