"""What must hold between the fields of a decoded message: parallel columns, shapes, rows that exist."""

from typing import get_args

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.errors import Reason
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, FinishReason, Logprobs
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan

_ENDINGS = frozenset((-1, *map(int, FinishReason)))
_REASONS: frozenset[str] = frozenset(get_args(Reason))


def check_request(request: EngineCoreRequest) -> None:
    """WireError unless the prompt is one row of tokens."""
    _require(request.prompt_token_ids.ndim == 1, "a prompt has one dimension")


def check_outputs(outputs: EngineCoreOutputs) -> None:
    """WireError unless all columns are parallel and every row that is named exists."""
    num_rows = len(outputs.request_ids)
    columns = (
        outputs.num_new_tokens,
        outputs.finish_reasons,
        outputs.stop_token_ids,
        outputs.num_cached_tokens,
    )
    _require(all(len(column) == num_rows for column in columns), "columns of different lengths")
    token_ids = outputs.new_token_ids
    _require(not token_ids or (min(token_ids) >= -(2**31) and max(token_ids) < 2**31), "a token is an int32")
    _require(not num_rows or min(outputs.num_new_tokens) >= 0, "a negative number of tokens")
    _require(_ENDINGS.issuperset(outputs.finish_reasons), "an ending that is not known")
    _require(_REASONS.issuperset(reason for _, reason, _ in outputs.errors), "an error that is not known")
    _require(sum(outputs.num_new_tokens) == len(outputs.new_token_ids), "tokens and their counts disagree")
    pairs = outputs.logprobs + outputs.prompt_logprobs
    rows = [row for row, _ in [*pairs, *outputs.detours]]
    rows += [row for row, _, _ in [*outputs.errors, *outputs.timings]]
    rows += [row for row, _ in outputs.pooled]
    _require(not rows or 0 <= min(rows) <= max(rows) < num_rows, "a row that does not exist")
    for _, logprobs in pairs:
        check_logprobs(logprobs)
    _require(all(vector.ndim == 1 for _, vector in outputs.pooled), "a pooled vector has one dimension")


def check_logprobs(logprobs: Logprobs) -> None:
    """WireError unless the three arrays describe the same positions."""
    shape = logprobs.token_ids.shape
    _require(len(shape) == 2 and logprobs.logprobs.shape == shape, "log-probabilities have two dimensions")
    _require(logprobs.ranks.shape == shape[:1], "one rank for each position")


def check_plan(plan: StepPlan) -> None:
    """WireError unless the running columns and the row columns are parallel."""
    num_running = len(plan.running_ids)
    columns = (plan.running_new_blocks, plan.running_num_computed_tokens, plan.running_last_token_ids)
    _require(all(len(column) == num_running for column in columns), "columns of different lengths")
    _require(len(plan.num_scheduled_tokens) == plan.num_rows, "one count of tokens for each row")
    _require(all(row.token_ids.ndim == 1 for row in plan.new_rows), "tokens have one dimension")


def check_answer(answer: ModelRunnerOutput) -> None:
    """WireError unless every sampled row has one token."""
    _require(len(answer.request_ids) == len(answer.token_ids), "columns of different lengths")
    _require(_REASONS.issuperset(reason for _, reason, _ in answer.failed), "an error that is not known")
    for _, logprobs in answer.logprobs + answer.prompt_logprobs:
        check_logprobs(logprobs)
    _require(all(vector.ndim == 1 for _, vector in answer.pooled), "a pooled vector has one dimension")


def _require(holds: bool, detail: str) -> None:
    if not holds:
        raise WireError("type", detail)
