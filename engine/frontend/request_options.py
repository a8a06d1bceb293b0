"""RequestOptions: what may come with a prompt, and the arrival that is made of it."""

import time
from typing import TypedDict

from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.front_queue import Place


class RequestOptions(TypedDict, total=False):
    """What may come with a prompt, one of `num_prompts` of a request.

    Moments are `time.monotonic_ns()`; with `stream` False a sequence gives one delta, at its end (cheaper than
    merging them). With `deadline_at` nothing is sent from then on; `place` is the room in the queue that was kept
    for the request. `http_id` is ours of the HTTP request, `external_id` the client's label for it; `operation` is
    chat or text_completion, `model` the name it asked for, `account` and `trace_parent` as in `RequestSubmitted`.
    """

    priority: int
    cache_salt: str | None
    received_at: int | None
    parsed_at: int | None
    rendered_at: int | None
    external_id: str
    account: str
    http_id: str
    operation: str
    model: str
    trace_parent: str
    stream: bool
    num_prompts: int
    deadline_at: int | None
    place: Place | None


def arrival_of(options: RequestOptions, num_sequences: int, model: str) -> Arrival:
    """Moments that were not taken become the one before them; `model` stands where none was asked for."""
    received_at = options.get("received_at") or time.monotonic_ns()
    parsed_at = options.get("parsed_at") or received_at
    return Arrival(
        external_id=options.get("external_id", ""),
        account=options.get("account", ""),
        http_id=options.get("http_id", ""),
        operation=options.get("operation", "text_completion"),
        is_streamed=options.get("stream", True),
        model=options.get("model", model),
        trace_parent=options.get("trace_parent", ""),
        priority=options.get("priority", 0),
        cache_salt=options.get("cache_salt"),
        received_at=received_at,
        parsed_at=parsed_at,
        rendered_at=options.get("rendered_at") or parsed_at,
        num_sequences=num_sequences,
        num_prompts=options.get("num_prompts", 1),
    )
