"""StepRows: the rows of an engine's steps, four numbers each."""

from collections.abc import Callable

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import StepPlanned
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.stream_numbers import StreamNumbers

PREFILL, DECODE, RECOMPUTE = 0, 1, 2
ROW_NUMBERS = 4


class StepRows:
    """Turns steps, given in order, into flat lists: number of the request, kind, tokens, cached tokens a row.

    A sequence that was seen to decode is looked at again only when it was preempted. `find` gives a sequence's
    ledger, None where it is no longer kept.
    """

    def __init__(self, find: Callable[[str], SequenceLedger | None], numbers: StreamNumbers) -> None:
        self._find = find
        self._numbers = numbers
        self._decoding: set[str] = set()

    def __len__(self) -> int:
        return len(self._decoding)

    def of(self, step: StepFacts) -> list[int]:
        """The rows of the next step. Cached tokens are those found when the request was admitted in this step."""
        planned, decoding = step.planned, self._decoding
        request_ids = planned.request_ids
        num_rows = len(request_ids)
        decoding.difference_update(planned.preempted_ids)
        rows = [DECODE] * (ROW_NUMBERS * num_rows)
        rows[0::ROW_NUMBERS] = self._numbers.of(request_ids)
        rows[2::ROW_NUMBERS] = planned.num_scheduled_tokens
        rows[3::ROW_NUMBERS] = [0] * num_rows
        cached = dict(zip(planned.admitted_ids, planned.admitted_cached_tokens, strict=False))
        for index, request_id in enumerate(request_ids):
            if request_id not in decoding:
                rows[ROW_NUMBERS * index + 1] = self._kind(planned, index)
                rows[ROW_NUMBERS * index + 3] = cached.get(request_id, 0)
        return rows

    def forget_unnamed(self) -> None:
        """Keep only those that have numbers."""
        self._decoding = {request_id for request_id in self._decoding if request_id in self._numbers}

    def lost(self) -> None:
        """Records are missing: anybody may have been preempted."""
        self._decoding.clear()

    def _kind(self, planned: StepPlanned, index: int) -> int:
        request_id, num_computed = planned.request_ids[index], planned.num_computed_tokens[index]
        ledger = self._find(request_id)
        if ledger is None:
            # Of one that is no longer known: several tokens at once are those of a prompt.
            return PREFILL if planned.num_scheduled_tokens[index] > 1 else DECODE
        if ledger.num_preemptions and num_computed < computed_before(ledger, planned.step):
            return RECOMPUTE
        if num_computed < ledger.submitted.num_prompt_tokens:
            return PREFILL
        if not ledger.is_orphan:
            self._decoding.add(request_id)
        return DECODE


def computed_before(ledger: SequenceLedger, step: int) -> int:
    """The most tokens that a sequence's steps before this one have computed."""
    high = 0
    for run in ledger.step_runs:
        if run.first_step >= step:
            break
        num_steps = min(run.num_steps, step - run.first_step)
        high = max(high, run.num_computed + num_steps * run.num_tokens)
    return high
