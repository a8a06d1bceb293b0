"""What comes with a prompt becomes its arrival, and what does not come has a default."""

from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.request_options import arrival_of


def test_what_was_given_stands_and_moments_that_were_not_taken_are_those_before_them() -> None:
    assert arrival_of({"received_at": 5, "external_id": "abc", "stream": False}, 3, "m") == Arrival(
        external_id="abc",
        account="",
        http_id="",
        operation="text_completion",
        is_streamed=False,
        model="m",
        trace_parent="",
        priority=0,
        cache_salt=None,
        received_at=5,
        parsed_at=5,
        rendered_at=5,
        num_sequences=3,
        num_prompts=1,
    )
    assert arrival_of({"received_at": 5, "parsed_at": 7, "model": "asked"}, 1, "m").rendered_at == 7
    assert arrival_of({}, 1, "m").received_at > 0
