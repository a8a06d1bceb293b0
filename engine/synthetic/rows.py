"""The sequences a synthetic rank holds between steps: counts only, no blocks and no cache."""

from dataclasses import dataclass
from typing import NamedTuple

from vllm_obs.engine.messages import Int32Array, SamplingSpec
from vllm_obs.engine.plan import NewRow, StepPlan


@dataclass
class Row:
    """One sequence. `num_tokens` are known; `prompt` is kept only where its log-probabilities are asked for."""

    request_id: str
    sampling: SamplingSpec
    num_tokens: int
    prompt: Int32Array | None


class PromptSpan(NamedTuple):
    """Prompt tokens of a row that this step scores: those that follow the positions it computes."""

    request_id: str
    token_ids: list[int]
    num_best: int


class StepWork(NamedTuple):
    """What a plan asks for: the rows it samples, the prompts it scores, and how much was cached before it."""

    sampled: list[Row]
    spans: list[PromptSpan]
    num_context_tokens: int


class Rows:
    """Changed by plans only, as a real runner's input batch is; holds no more than plans have not released."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def update(self, plan: StepPlan) -> StepWork:
        """Apply a plan and say what it asks for."""
        for request_id in plan.released_ids:
            self._rows.pop(request_id, None)
        for new in plan.new_rows:
            self._rows[new.request_id] = _row_of(new)
        computed = [new.num_computed_tokens for new in plan.new_rows] + plan.running_num_computed_tokens
        work = StepWork([], [], sum(computed))
        for place, request_id in enumerate(plan.row_ids):
            row, begin = self._rows[request_id], computed[place]
            if begin == row.num_tokens:
                row.num_tokens += 1  # all its tokens were computed, so it has been sampled since
            end = begin + plan.num_scheduled_tokens[place]
            if end == row.num_tokens:
                work.sampled.append(row)
            if row.prompt is not None and (token_ids := row.prompt[begin + 1 : end + 1].tolist()):
                work.spans.append(PromptSpan(request_id, token_ids, row.sampling.prompt_logprobs or 0))
        return work


def _row_of(new: NewRow) -> Row:
    # Generated tokens in a new row mean that its prompt was answered before a preemption.
    is_scored = new.sampling.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens
    return Row(new.request_id, new.sampling, len(new.token_ids), new.token_ids if is_scored else None)
