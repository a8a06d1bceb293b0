"""Facts of one sequence or HTTP request, by the API server and the core."""

from typing import NamedTuple


class RequestSubmitted(NamedTuple):
    """API server: one sequence left for the core. The moments are the API server's stages in order.

    `http_id` is our id of the HTTP request (empty offline), `external_id` the client's label for it.
    `num_sequences` is n, `num_prompts` how many prompts the HTTP request has. `operation` is chat,
    text_completion or embeddings. `account` is the label of the API key it came with (never the key), empty
    without keys. `trace_parent` is a W3C traceparent: the trace and the span the request's own span is a child of
    (a span id of zeros: of none), empty where nothing is traced.
    """

    request_id: str
    client_index: int
    http_id: str
    external_id: str
    sequence_index: int
    num_sequences: int
    num_prompts: int
    operation: str
    is_streamed: bool
    model: str
    trace_parent: str
    received_at: int
    parsed_at: int
    rendered_at: int
    tokenized_at: int
    submitted_at: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    temperature: float
    top_p: float
    top_k: int
    account: str = ""


class RequestEnded(NamedTuple):
    """API server: the one ending of a sequence. `finish_reason` is stop, length, abort, error or repetition.

    `taken_at` is when the engine's last message about it was taken (0 when there was none); the text of its last
    tokens was made, or the ending decided here, at `ended_at`.
    """

    request_id: str
    client_index: int
    finish_reason: str
    error: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    first_token_at: int
    last_token_at: int
    taken_at: int
    ended_at: int


class OutputsTaken(NamedTuple):
    """API server: one step's message was taken at `taken_at` and made into text by `processed_at`."""

    step: int
    engine_index: int
    client_index: int
    sampled_at: int
    sent_at: int
    taken_at: int
    processed_at: int
    num_sequences: int


class HttpRequestEnded(NamedTuple):
    """API server: an HTTP request's last byte was accepted by the client's socket, or its client left.

    `handler` is the route's template, `method` the verb; both are `other` outside the closed set. `status` is
    499 where the client left before it was answered. `reason` is the error's word from the closed set, empty
    where there is none.
    """

    http_id: str
    client_index: int
    external_id: str
    handler: str
    method: str
    status: int
    reason: str
    trace_parent: str
    received_at: int
    first_byte_at: int
    ended_at: int
    num_request_bytes: int
    num_response_bytes: int


class RequestTaken(NamedTuple):
    """Core: the sequence was taken out of the inbox and queued, or will be once its grammar is compiled.

    One that `skips_cache` is not looked up in the prefix cache: each token of its prompt must pass the model.
    """

    request_id: str
    client_index: int
    submitted_at: int
    taken_at: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    awaits_grammar: bool = False
    skips_cache: bool = False


class RequestReleased(NamedTuple):
    """Core: the sequence left the scheduler and its blocks went back."""

    request_id: str
    finish_reason: str
    released_at: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int


class RequestKeyframe(NamedTuple):
    """Core: one live sequence as it is after `step`: its whole block table and counts."""

    step: int
    request_id: str
    is_running: bool
    block_ids: list[int]
    num_computed_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
