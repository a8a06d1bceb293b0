"""What a core's records tell of a sequence's submission, in the place of the record that has not come."""

from vllm_obs.telemetry.records import RequestSubmitted, RequestTaken


def submission_taken(taken: RequestTaken) -> RequestSubmitted:
    """What the core knows of a submission, until the API server's own record comes."""
    return unknown_submission(taken.request_id, taken.submitted_at)._replace(
        client_index=taken.client_index,
        num_prompt_tokens=taken.num_prompt_tokens,
        max_tokens=taken.max_tokens,
        priority=taken.priority,
    )


def unknown_submission(request_id: str, at: int) -> RequestSubmitted:
    """A submission of which nothing is known but that it was before this moment (monotonic ns)."""
    return RequestSubmitted(
        request_id=request_id,
        client_index=0,
        http_id="",
        external_id="",
        sequence_index=0,
        num_sequences=1,
        num_prompts=1,
        operation="",
        is_streamed=False,
        model="",
        trace_parent="",
        received_at=at,
        parsed_at=at,
        rendered_at=at,
        tokenized_at=at,
        submitted_at=at,
        num_prompt_tokens=0,
        max_tokens=0,
        priority=0,
        temperature=0.0,
        top_p=0.0,
        top_k=0,
    )
