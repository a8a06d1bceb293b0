"""The columns of a step's outputs, row by row."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.outputs import TokenLogprob
from vllm_obs.engine.messages import Detours, EngineCoreOutputs, Float32Array, Logprobs

LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which is not JSON."""


class OutputRow(NamedTuple):
    """One row of `EngineCoreOutputs`, with -1 for none as there."""

    request_id: str
    token_ids: list[int]
    finish_reason: int
    stop_token_id: int
    num_cached_tokens: int
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None
    error: RequestFailedError | None
    timing: tuple[int, int] | None
    detours: Detours | None
    pooled: Float32Array | None = None


class OutputRows:
    """The rows of one step.

    Most are *plain*: one more token of a sequence which goes on. `columns` has all there is to such a row;
    `is_plain` says whether all are, and `unusual` which are not: of those `row` tells the rest.
    """

    def __init__(self, outputs: EngineCoreOutputs) -> None:
        self._outputs = outputs
        self._token_ids = outputs.new_token_ids
        self._told: tuple[dict[int, Any], ...] | None = None
        self._begins: list[int] = []
        has_more = outputs.logprobs or outputs.prompt_logprobs or outputs.errors or outputs.timings
        num_rows, is_one_each = len(outputs.request_ids), outputs.num_new_tokens.count(1)
        self.is_plain = (
            is_one_each == outputs.finish_reasons.count(-1) == num_rows
            and not has_more
            and not (outputs.detours or outputs.pooled)
        )

    @property
    def columns(self) -> Iterable[tuple[str, int, int]]:
        """Of each row its sequence, its first token (-1 for none) and its cached tokens."""
        outputs, token_ids = self._outputs, self._token_ids
        if not self.is_plain:
            begins = self._begins_of()
            padded = [*token_ids, -1]
            pairs = zip(begins, outputs.num_new_tokens, strict=False)
            token_ids = [padded[begin] if number else -1 for begin, number in pairs]
        return zip(outputs.request_ids, token_ids, outputs.num_cached_tokens, strict=True)

    @property
    def unusual(self) -> set[int]:
        """Rows that are more, or less, than one token."""
        if self.is_plain:
            return set()
        pairs = enumerate(zip(self._outputs.finish_reasons, self._outputs.num_new_tokens, strict=True))
        endings = {row for row, (reason, number) in pairs if reason >= 0 or number != 1}
        return endings.union(*self._more())

    def row(self, row: int) -> OutputRow:
        """All of a row."""
        outputs, begin = self._outputs, self._begins_of()[row]
        logprobs, prompt_logprobs, errors, timings, detours, pooled = self._more()
        error = errors.get(row)
        return OutputRow(
            outputs.request_ids[row],
            self._token_ids[begin : begin + outputs.num_new_tokens[row]],
            outputs.finish_reasons[row],
            outputs.stop_token_ids[row],
            outputs.num_cached_tokens[row],
            logprobs.get(row),
            prompt_logprobs.get(row),
            None if error is None else RequestFailedError(error[1], error[0]),
            timings.get(row),
            detours.get(row),
            pooled.get(row),
        )

    def _begins_of(self) -> list[int]:
        if not self._begins:
            self._begins = list(accumulate(self._outputs.num_new_tokens, initial=0))
        return self._begins

    def _more(self) -> tuple[dict[int, Any], ...]:
        """What else is told of rows, by row."""
        if self._told is None:
            outputs = self._outputs
            self._told = (
                dict(outputs.logprobs),
                dict(outputs.prompt_logprobs),
                {row: (reason, message) for row, reason, message in outputs.errors},
                {row: (taken_at, scheduled_at) for row, taken_at, scheduled_at in outputs.timings},
                dict(outputs.detours),
                dict(outputs.pooled),
            )
        return self._told


def token_logprobs(columns: Logprobs) -> list[TokenLogprob]:
    """One entry a position; values under -9999 (minus infinity) become -9999."""
    return [
        TokenLogprob(
            ids[0],
            max(values[0], LOWEST_LOGPROB),
            rank,
            [
                (token_id, max(value, LOWEST_LOGPROB), place)
                for place, (token_id, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1)
            ],
        )
        for ids, values, rank in zip(
            columns.token_ids.tolist(), columns.logprobs.tolist(), columns.ranks.tolist(), strict=True
        )
    ]
