"""What a step may have for prompts beside those that decode, and of the rows where several steps are under way."""

from vllm_obs.engine.scheduler_state import SchedulerState


def prefill_share(state: SchedulerState) -> int:
    """Most tokens of a step for sequences that need more than one: beside those that decode, a share.

    The share may grow with those who decode, so that a step gets longer by about the same factor, and where
    more have to begin than decode each of these has one.
    """
    limits = state.limits
    num_running, num_decoding = len(state.running), _num_decoding(state)
    if not num_decoding or not limits.enable_chunked_prefill:
        return limits.max_num_batched_tokens
    num_to_admit = min(len(state.waiting), limits.max_num_seqs - num_running)
    num_beginning = num_to_admit + num_running - num_decoding
    num_grown = int(limits.mixed_prefill_tokens_a_decode * num_decoding / limits.num_steps_in_flight)
    share = max(limits.max_num_mixed_prefill_tokens, num_grown)
    return min(limits.max_num_batched_tokens, share * max(1, -(-num_beginning // num_decoding)))


def _num_decoding(state: SchedulerState) -> int:
    """How many decode: those to whom the last step gave a token, of whom some may have ended.

    In a pipeline they are counted: a step has a part of them.
    """
    running = state.running
    if state.limits.num_steps_in_flight > 1:
        return sum(request.num_planned_tokens - request.num_computed_tokens <= 1 for request in running)
    return min(state.num_sampled, len(running))


def rows_share(state: SchedulerState) -> int:
    """How many rows a step has, so that as many steps as the pipeline has stages have all of them."""
    num_rows = min(len(state.running) + len(state.waiting), state.limits.max_num_seqs)
    return max(1, -(-num_rows // state.limits.num_steps_in_flight))
