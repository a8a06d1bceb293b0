"""The open sequences of one front end: rows from the core in, deltas out, one ending each."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.open_sequence import OpenSequence, SequenceRequest
from vllm_obs.engine.frontend.output_rows import OutputRows
from vllm_obs.engine.frontend.poison_book import OpenRequest
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineCoreOutputs, FinishReason
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import OutputsTaken, RequestEnded

logger = logging.getLogger(__name__)

NUM_STEPS_TO_BEGIN = 4
"""So many messages may come of steps that were on their way when a sequence was sent. One of which nothing is said
in those was passed over: it waits in the queue."""


class CoreAborts(NamedTuple):
    """Sequences that ended here while the core still runs them, by the reason it is to be told."""

    stopped: list[str]
    failed: list[str]


class OutputProcessor:
    """Keeps sequences from `register` (before they are sent) to their one recorded ending.

    Rows of sequences it does not know (ended or aborted meanwhile) are counted in `num_unknown_rows` and ignored.
    What goes wrong with one sequence fails that one only.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        recorder: Recorder,
        client_index: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._client_index = client_index
        self._clock = clock
        self._open: dict[str, OpenSequence] = {}
        self.num_unknown_rows = 0
        self._num_steps: dict[int, int] = {}

    @property
    def num_open(self) -> int:
        """Sequences registered and not ended."""
        return len(self._open)

    def is_open(self, request_id: str) -> bool:
        """Whether a sequence is registered and not ended."""
        return request_id in self._open

    def open_requests(
        self, max_num_seqs: int, request_ids: Iterable[str], engine_index: int = 0
    ) -> list[OpenRequest]:
        """Those of an engine's sequences that are open, in the given order; it runs so many of them at once."""
        found = [(request_id, self._open.get(request_id)) for request_id in request_ids]
        there = [(request_id, one) for request_id, one in found if one is not None]
        is_full = sum(one.has_run for _, one in there) >= max_num_seqs
        begun = self._num_steps.get(engine_index, 0) - NUM_STEPS_TO_BEGIN
        return [
            OpenRequest(
                request_id,
                one.request.prompt_token_ids,
                one.request.params,
                one.num_output_tokens,
                may_run=one.has_run or not (is_full or one.num_steps_before.get(engine_index, 0) < begun),
            )
            for request_id, one in there
        ]

    def register(self, *requests: SequenceRequest) -> None:
        """Take sequences on, all of them or none; the deltas of each go to its `sink`."""
        made = [OpenSequence(request, self._tokenizer, self._clock) for request in requests]
        for sequence in made:
            sequence.num_steps_before = self._num_steps.copy()
            self._open[sequence.request.request_id] = sequence

    def process(self, outputs: EngineCoreOutputs) -> CoreAborts:
        """Take one step's rows in; tells which sequences the core must be told to abort."""
        taken_at = self._clock()
        aborts = CoreAborts([], [])
        for request_id in outputs.scheduled_ids:
            if (begun := self._open.get(request_id)) is not None:
                begun.has_run = True
        self._take_rows(outputs, taken_at, aborts)
        if outputs.request_ids:
            engine_index = outputs.engine_index
            self._num_steps[engine_index] = self._num_steps.get(engine_index, 0) + 1
            self._record_taken(outputs, taken_at)
        return aborts

    def end(
        self, request_ids: Iterable[str], reason: FinishReason, error: RequestFailedError | None = None
    ) -> list[str]:
        """End those of the sequences that are open, and say which they were."""
        ended = [request_id for request_id in request_ids if request_id in self._open]
        for request_id in ended:
            sequence = self._open[request_id]
            try:
                sequence.fail(reason.label, error)
            except Exception:  # whoever was to be told cannot be; it has ended all the same
                logger.exception("The end of request %s could not be told", request_id)
            self._close(sequence, "" if error is None else error.reason)
        return ended

    def end_all(self, reason: FinishReason, error: RequestFailedError | None = None) -> list[str]:
        """End every open sequence (the engine died, or we stop), and say which they were."""
        return self.end(list(self._open), reason, error)

    def _take_rows(self, outputs: EngineCoreOutputs, taken_at: int, aborts: CoreAborts) -> None:
        """The hot loop: one pass over the rows, with a boundary around each."""
        rows, find, sampled_at = OutputRows(outputs), self._open.get, outputs.sampled_at
        unusual = rows.unusual
        for row, (request_id, token_id, num_cached) in enumerate(rows.columns):
            sequence = find(request_id)
            if sequence is None:
                self.num_unknown_rows += 1
                continue
            sequence.taken_at = taken_at
            sequence.has_run = True
            try:
                if row in unusual:
                    sequence.advance(rows.row(row), sampled_at)
                else:
                    sequence.go_on(token_id, num_cached, sampled_at)
            except Exception:
                self._fail(request_id, outputs.finish_reasons[row] >= 0, aborts)
                continue
            if sequence.finish_reason is not None:
                self._close(sequence, sequence.error_reason)
                if sequence.stopped_here:
                    aborts.stopped.append(request_id)

    def _fail(self, request_id: str, has_ended: bool, aborts: CoreAborts) -> None:
        """What went wrong with a row ends its sequence; the core is told unless it has ended there anyway."""
        logger.exception("Detokenizing failed for request %s", request_id)
        failure = RequestFailedError("The output could not be turned into text.", "internal_error")
        self.end([request_id], FinishReason.ERROR, failure)
        if not has_ended:
            aborts.failed.append(request_id)

    def _record_taken(self, outputs: EngineCoreOutputs, taken_at: int) -> None:
        self._recorder.record(
            OutputsTaken(
                step=outputs.step,
                engine_index=outputs.engine_index,
                client_index=self._client_index,
                sampled_at=outputs.sampled_at,
                sent_at=outputs.sent_at,
                taken_at=taken_at,
                processed_at=self._clock(),
                num_sequences=len(outputs.request_ids),
            )
        )

    def _close(self, sequence: OpenSequence, error: str) -> None:
        del self._open[sequence.request.request_id]
        self._recorder.record(
            RequestEnded(
                request_id=sequence.request.request_id,
                client_index=self._client_index,
                finish_reason=sequence.finish_reason or "",
                error=error,
                num_prompt_tokens=len(sequence.request.prompt_token_ids),
                num_output_tokens=sequence.num_output_tokens,
                num_cached_tokens=sequence.num_cached_tokens,
                first_token_at=sequence.first_token_at,
                last_token_at=sequence.last_token_at,
                taken_at=sequence.taken_at,
                ended_at=sequence.ended_at,
            )
        )
