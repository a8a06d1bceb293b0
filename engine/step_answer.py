"""Applies a step's answer: appends sampled tokens, ends what has to end, lets filled blocks be shared."""

from typing import NamedTuple

from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.plan import ModelRunnerOutput
from vllm_obs.engine.request import NO_TOKEN, Request
from vllm_obs.engine.scheduler_state import InFlightStep, SchedulerState

INVALID_LOGITS = "invalid_logits"
NOT_ANSWERED = "The step gave no token for this sequence."


class StepUpdate(NamedTuple):
    """The used results of a step: `token_ids[i]` was appended to `requests[i]`, which is one of its `request_ids`.

    `is_plain` where nobody ended with it and nobody was only scored: each got a token and goes on.
    """

    requests: list[Request]
    token_ids: list[int]
    num_wasted_rows: int
    request_ids: list[str]
    is_plain: bool = False


def apply_output(state: SchedulerState, output: ModelRunnerOutput) -> StepUpdate:
    """Apply the answer to the oldest plan in flight, and give back the blocks that waited for it.

    Rows whose sequence left meanwhile are wasted: their result is dropped and they are counted. What a row
    without numbers has computed is found by nobody from here on, whatever becomes of its sequence.
    """
    step = state.in_flight[0]
    if output.step != step.step:
        raise RuntimeError(f"step {output.step} answered, step {step.step} is next")
    failures = {request_id: (reason, message) for request_id, reason, message in output.failed}
    if broken := {request_id for request_id, reason, _ in output.failed if reason == INVALID_LOGITS}:
        state.forget_blocks_of(broken)
    if output.prompt_logprobs:
        _keep_prompt_logprobs(step, output)
    if output.pooled:
        _keep_pooled(step, output)
    num_wasted = _apply_chunks(state, step, failures)
    requests, token_ids, request_ids = step.sampled, output.token_ids, step.sampled_ids
    num_ended = len(state.ended)
    if step.dropped or failures or output.request_ids != step.sampled_ids:
        requests, token_ids, num_sampled_wasted = _pair(state, step, output, failures)
        num_wasted += num_sampled_wasted
        request_ids = [request.request_id for request in requests]
    num_errors = len(state.errors)
    _append_tokens(state, requests, token_ids)
    if len(state.errors) > num_errors:
        kept = [pair for pair in zip(requests, token_ids, strict=True) if pair[0].error is None]
        requests, token_ids = [pair[0] for pair in kept], [pair[1] for pair in kept]
        request_ids = [request.request_id for request in requests]
    state.in_flight.remove(step)
    state.release_held(step)
    is_plain = len(state.ended) == num_ended and not state.has_scored
    return StepUpdate(requests, token_ids, num_wasted, request_ids, is_plain)


def _keep_prompt_logprobs(step: InFlightStep, output: ModelRunnerOutput) -> None:
    """Collect the log-probabilities of prompt positions until the first token; later ones are recomputed."""
    rows = {request.request_id: request for request in step.requests}
    for request_id, logprobs in output.prompt_logprobs:
        request = rows.get(request_id)
        if request is not None and request_id not in step.dropped and request.wants_prompt_logprobs:
            request.prompt_logprobs.append(logprobs)


def _keep_pooled(step: InFlightStep, output: ModelRunnerOutput) -> None:
    """Keep the vectors of prompts until their endings go out, in this step."""
    rows = {request.request_id: request for request in step.sampled}
    for request_id, vector in output.pooled:
        if request_id in rows and request_id not in step.dropped:
            rows[request_id].pooled = vector


def _apply_chunks(state: SchedulerState, step: InFlightStep, failures: dict[str, tuple[str, str]]) -> int:
    num_wasted = 0
    for request, num_computed_tokens in step.chunks:
        if request.request_id in step.dropped:
            num_wasted += 1
        elif request.request_id in failures:
            _fail(state, request, *failures[request.request_id])
        else:
            _cache(state, request, num_computed_tokens)
    return num_wasted


def _fail(state: SchedulerState, request: Request, reason: str, message: str) -> None:
    """End a row's sequence, unless what is wrong with it may be others' doing: who found blocks is asked again."""
    if reason == INVALID_LOGITS and request.num_found_tokens:
        state.suspect(request)
    else:
        state.fail(request, reason, message)


def _cache(state: SchedulerState, request: Request, num_answered_tokens: int) -> None:
    try:
        state.kv_cache.cache_blocks(request, num_answered_tokens)
    except Exception as error:
        state.fail_on(request, error)


def _pair(
    state: SchedulerState, step: InFlightStep, output: ModelRunnerOutput, failures: dict[str, tuple[str, str]]
) -> tuple[list[Request], list[int], int]:
    """The rows whose answer is used with their tokens, and how many rows were wasted; failed ones end here."""
    answers = dict(zip(output.request_ids, output.token_ids, strict=True))
    requests: list[Request] = []
    token_ids: list[int] = []
    num_wasted = 0
    for request in step.sampled:
        request_id = request.request_id
        if request_id in step.dropped:
            num_wasted += 1
        elif request_id in failures:
            _fail(state, request, *failures[request_id])
        elif request_id in answers:
            requests.append(request)
            token_ids.append(answers[request_id])
        else:
            state.fail(request, "internal_error", NOT_ANSWERED)
    return requests, token_ids, num_wasted


def _append_tokens(state: SchedulerState, requests: list[Request], token_ids: list[int]) -> None:
    """The hot loop: one pass over the sampled rows, with a boundary around each."""
    cache_blocks = state.kv_cache.cache_blocks
    for request, token_id in zip(requests, token_ids, strict=True):
        try:
            request.token_ids.append(token_id)
            request.last_token_id = token_id
            num_answered = request.num_tokens
            num_tokens = request.num_tokens = num_answered + 1
            if num_answered >= request.next_cache_at:
                cache_blocks(request, num_answered)
            if num_tokens >= request.max_num_tokens or token_id in request.ending_token_ids:
                _end_if_stopped(state, request, token_id)
        except Exception as error:
            state.fail_on(request, error)


def _end_if_stopped(state: SchedulerState, request: Request, token_id: int) -> None:
    """End of sequence, then stop tokens (both only from `min_tokens` on), then the length limits.

    What was only to be scored ends by its length, whatever the token; what was pooled has stopped.
    """
    sampling = request.sampling
    if sampling.pooling:
        _end_pooled(state, request)
        return
    if sampling.max_tokens and request.num_output_tokens >= sampling.min_tokens:
        if token_id in sampling.eos_token_ids:
            state.end(request, FinishReason.STOP, NO_TOKEN)
            return
        if token_id in sampling.stop_token_ids:
            state.end(request, FinishReason.STOP, token_id)
            return
    if request.num_tokens >= request.max_num_tokens:
        state.end(request, FinishReason.LENGTH)


def _end_pooled(state: SchedulerState, request: Request) -> None:
    if request.pooled is None:
        state.fail(request, "internal_error", NOT_ANSWERED)
    else:
        state.end(request, FinishReason.STOP)
