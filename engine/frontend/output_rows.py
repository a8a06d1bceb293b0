"""The columns of a step's outputs, row by row."""

from collections.abc import Iterator
from itertools import accumulate, chain
from typing import NamedTuple

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


class PlainRow(NamedTuple):
    """A row that is one more token of a sequence which goes on, as most are."""

    request_id: str
    token_id: int
    num_cached_tokens: int


class OutputRows:
    """Iterate it for the rows of one step in their order."""

    def __init__(self, outputs: EngineCoreOutputs) -> None:
        self._outputs = outputs
        self._token_ids: list[int] = outputs.new_token_ids.tolist()
        self._logprobs, self._prompt_logprobs = dict(outputs.logprobs), dict(outputs.prompt_logprobs)
        self._errors = {row: (reason, message) for row, reason, message in outputs.errors}
        self._timings = {row: (taken_at, scheduled_at) for row, taken_at, scheduled_at in outputs.timings}
        self._detours, self._pooled = dict(outputs.detours), dict(outputs.pooled)

    def __iter__(self) -> Iterator[OutputRow | PlainRow]:
        outputs, token_ids = self._outputs, self._token_ids
        num_tokens, reasons = outputs.num_new_tokens, outputs.finish_reasons
        begins = accumulate(num_tokens, initial=0)
        columns = zip(outputs.request_ids, reasons, num_tokens, outputs.num_cached_tokens, begins, strict=False)
        more = self._more()
        for row, (request_id, reason, number, num_cached, begin) in enumerate(columns):
            if reason < 0 and number == 1 and row not in more:
                yield PlainRow(request_id, token_ids[begin], num_cached)
            else:
                yield self._row(row, begin)

    def _more(self) -> set[int]:
        """Rows of which there is more to tell than their token."""
        told = (self._logprobs, self._prompt_logprobs, self._errors, self._timings, self._detours, self._pooled)
        return set(chain.from_iterable(told))

    def _row(self, row: int, begin: int) -> OutputRow:
        outputs, error = self._outputs, self._errors.get(row)
        return OutputRow(
            outputs.request_ids[row],
            self._token_ids[begin : begin + outputs.num_new_tokens[row]],
            outputs.finish_reasons[row],
            outputs.stop_token_ids[row],
            outputs.num_cached_tokens[row],
            self._logprobs.get(row),
            self._prompt_logprobs.get(row),
            None if error is None else RequestFailedError(error[1], error[0]),  # type: ignore[arg-type]
            self._timings.get(row),
            self._detours.get(row),
            self._pooled.get(row),
        )


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
