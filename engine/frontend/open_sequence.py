"""One sequence that has not ended: what the core sends of it becomes deltas of text."""

import time
from collections.abc import Callable
from typing import NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.faults import any_planted, maybe_fault
from vllm_obs.engine.frontend.detokenizer import Detokenizer
from vllm_obs.engine.frontend.output_rows import OutputRow, token_logprobs
from vllm_obs.engine.frontend.outputs import NO_DETOURS, SequenceDelta, SequenceTiming
from vllm_obs.engine.frontend.stop_strings import StopStrings
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.sampling_params import SamplingParams

AT_THE_END = 0
"""The interval of a sequence that gives one delta, when it has ended."""


TextSink = Callable[[int, str], bool]
"""Takes a text at once, or does not (False); it must not wait."""


class SequenceRequest(NamedTuple):
    """What is known of a sequence when it is sent. `interval` is in tokens; `sink` takes its deltas.

    Where all there is to tell is one more token's text `text_sink` is asked before, by the sequence's index; it
    may refuse (False), and then a delta comes. `tokenized_at` is monotonic ns.
    """

    request_id: str
    sequence_index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    sink: Callable[[SequenceDelta], None]
    interval: int = 1
    tokenized_at: int = 0
    text_sink: TextSink | None = None


class OpenSequence:
    """A sequence's detokenizer, stop strings and counts; `advance` with each row, then look at `ended`."""

    __slots__ = (
        "_clock",
        "_delta",
        "_detokenizer",
        "_detours",
        "_interval",
        "_num_shown",
        "_stops",
        "_text_sink",
        "_timing",
        "_tokenizer",
        "_whole_texts",
        "ended_at",
        "error_reason",
        "finish_reason",
        "first_token_at",
        "has_run",
        "last_token_at",
        "num_cached_tokens",
        "num_output_tokens",
        "num_steps_before",
        "request",
        "stopped_here",
        "taken_at",
    )

    def __init__(
        self, request: SequenceRequest, tokenizer: Tokenizer, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        params = request.params
        self.request = request
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.first_token_at = 0
        self.last_token_at = 0
        self.taken_at = 0
        """When the engine's last message about it was taken."""
        self.has_run = False
        """Whether the engine has said anything of it: else it may still wait in the queue."""
        self.num_steps_before: dict[int, int] = {}
        """How many messages each engine had sent when it was registered."""
        self.ended_at = 0
        self._clock = clock
        self.finish_reason: str | None = None
        self.error_reason = ""
        """Why it failed, as far as the core told."""
        self.stopped_here = False
        """Whether a stop string ended it, of which the core does not know."""
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens) if params.detokenize else None
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._num_shown = 0
        self._interval = request.interval or 1 << 62
        self._whole_texts = tokenizer.whole_texts
        is_direct = params.detokenize and not params.stop_strings and params.max_tokens != 0 and not any_planted()
        self._text_sink = request.text_sink if is_direct and request.interval == 1 else None
        self._timing = (0, 0)
        self._detours = NO_DETOURS
        self._delta = self._blank()
        self._delta.prompt_token_ids = request.prompt_token_ids
        if params.prompt_logprobs is not None and len(request.prompt_token_ids) == 1:
            self._delta.prompt_logprobs = [None]  # nothing predicts it, so that the core has nothing to say

    def advance(self, row: OutputRow, sampled_at: int) -> None:
        """Take in one row and pass a delta to the sink when one is due."""
        maybe_fault("detokenizer", row.request_id)
        if row.error is not None:
            self.error_reason = row.error.reason
        self.num_cached_tokens = max(self.num_cached_tokens, row.num_cached_tokens)
        self._timing = row.timing or self._timing
        self._detours = row.detours or self._detours
        if row.prompt_logprobs is not None:
            self._delta.prompt_logprobs = [None, *token_logprobs(row.prompt_logprobs)]
        if row.pooled is not None:
            self._delta.pooled = row.pooled
        if self.request.params.max_tokens == 0:
            self._end_scoring(row)
        else:
            self._take_tokens(row, sampled_at)
        self._show_if_due()

    def go_on(self, token_id: int, num_cached_tokens: int, sampled_at: int) -> None:
        """`advance` for a row that is one more token of a sequence which goes on, in a fraction of the time."""
        if num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = num_cached_tokens
        text_sink, detokenizer = self._text_sink, self._detokenizer
        if text_sink is None or detokenizer is None or not self._num_shown:
            self._take_token(token_id, sampled_at)
            return
        # All before it has been shown: with such a sink every token is, and nothing holds text back.
        text = self._whole_texts.get(token_id) if detokenizer.is_between else None
        if text is None:
            text = detokenizer.feed(token_id)
        number = self.num_output_tokens = self.num_output_tokens + 1
        self.last_token_at = sampled_at
        if text_sink(self.request.sequence_index, text):
            self._num_shown = number
            return
        self._delta.text += text
        self._delta.token_ids.append(token_id)
        self._show()

    def _take_token(self, token_id: int, sampled_at: int) -> None:
        """The general way of `go_on`."""
        maybe_fault("detokenizer", self.request.request_id)
        if self.request.params.max_tokens != 0:
            self.num_output_tokens += 1
            if self._detokenizer is not None:
                self._add_text(self._detokenizer.feed(token_id))
            self.first_token_at = self.first_token_at or sampled_at
            self.last_token_at = sampled_at
            self._delta.token_ids.append(token_id)
            if self._stops.matched is not None:
                self._stop_here()
        self._show_if_due()

    def fail(self, finish_reason: str, error: RequestFailedError | None) -> None:
        """End it from outside; what is held back (half a character, a beginning stop string) is dropped."""
        self.finish_reason = finish_reason
        self._delta.error = error
        self._show()

    def _take_tokens(self, row: OutputRow, sampled_at: int) -> None:
        taken = 0
        for position, token_id in enumerate(row.token_ids):
            taken += 1
            self.num_output_tokens += 1
            is_last = position == len(row.token_ids) - 1
            ends_it = is_last and row.finish_reason == FinishReason.STOP and self._is_stop(token_id, row)
            self._take_text(token_id, silent=ends_it and not self.request.params.include_stop_str_in_output)
            if self._stops.matched is not None:
                break
        if taken:
            self.first_token_at = self.first_token_at or sampled_at
            self.last_token_at = sampled_at
        self._delta.token_ids += row.token_ids[:taken]
        if row.logprobs is not None:
            self._delta.logprobs = (self._delta.logprobs or []) + token_logprobs(row.logprobs)[:taken]
        self._finish(row)

    def _is_stop(self, token_id: int, row: OutputRow) -> bool:
        """Whether the token itself ended the sequence; the last one of a grammar is output like another."""
        is_eos = token_id in self._tokenizer.eos_token_ids and not self.request.params.ignore_eos
        return is_eos or token_id == row.stop_token_id

    def _take_text(self, token_id: int, silent: bool) -> None:
        if self._detokenizer is None or silent:
            return
        self._add_text(self._detokenizer.feed(token_id))

    def _add_text(self, text: str) -> None:
        if text:
            searched = self.num_output_tokens > self.request.params.min_tokens
            self._delta.text += self._stops.feed(text, searched)

    def _finish(self, row: OutputRow) -> None:
        if self._stops.matched is None and row.finish_reason >= 0 and self._detokenizer is not None:
            self._add_text(self._detokenizer.finish())
            self._delta.text += self._stops.finish()
        if self._stops.matched is not None:
            self._stop_here()
            self.stopped_here = row.finish_reason < 0
        elif row.finish_reason >= 0:
            self.finish_reason = FinishReason(row.finish_reason).label
            self._delta.stop_reason = row.stop_token_id if row.stop_token_id >= 0 else None
            self._delta.error = row.error

    def _stop_here(self) -> None:
        """End it: there is a stop string in its text."""
        self.stopped_here = True
        self.finish_reason = FinishReason.STOP.label
        self._delta.stop_reason = self._stops.matched

    def _end_scoring(self, row: OutputRow) -> None:
        """The one token made to score a prompt is nobody's."""
        if row.finish_reason >= 0:
            normal = row.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            well = FinishReason.STOP if self.request.params.pooling else FinishReason.LENGTH
            self.finish_reason = FinishReason(well if normal else row.finish_reason).label
            self._delta.error = row.error

    def _show_if_due(self) -> None:
        num_new = self.num_output_tokens - self._num_shown
        first = num_new and not self._num_shown and self.request.interval != AT_THE_END
        if num_new >= self._interval or first or self.finish_reason is not None:
            self._show()

    def _show(self) -> None:
        delta, self._delta = self._delta, self._blank()
        delta.finish_reason = self.finish_reason
        if self.finish_reason is not None:
            self.ended_at = self._clock()
            delta.timing = self._moments()
        delta.num_cached_tokens = self.num_cached_tokens
        delta.num_output_tokens = self._num_shown = self.num_output_tokens
        self.request.sink(delta)

    def _moments(self) -> SequenceTiming:
        return SequenceTiming(
            *self._timing,
            first_token_at=self.first_token_at,
            last_token_at=self.last_token_at,
            tokenized_at=self.request.tokenized_at,
            returned_at=self.taken_at,
            ended_at=self.ended_at,
            detours=self._detours,
        )

    def _blank(self) -> SequenceDelta:
        request = self.request
        return SequenceDelta(
            request.request_id, request.sequence_index, num_prompt_tokens=len(request.prompt_token_ids)
        )
