import pytest
from metric_facts import MODEL, MetricFacts

from vllm_obs.engine.core_cut_off import CUT_OFF
from vllm_obs.engine.queue_bound import REASON_OF
from vllm_obs.telemetry.http_metrics import is_counted, status_group
from vllm_obs.telemetry.metrics import REJECTED_BY


def begun() -> MetricFacts:
    facts = MetricFacts()
    facts.describe()
    return facts


def test_a_request_is_named_and_labelled_as_the_instrumentator_does() -> None:
    facts = begun()
    facts.end_http()
    assert facts.samples("http_") == {
        "http_requests_total{handler=/v1/chat/completions,method=POST,status=2xx}": 1,
        "http_request_size_bytes_count{handler=/v1/chat/completions}": 1,
        "http_request_size_bytes_sum{handler=/v1/chat/completions}": 100,
        "http_response_size_bytes_count{handler=/v1/chat/completions}": 1,
        "http_response_size_bytes_sum{handler=/v1/chat/completions}": 1000,
        "http_request_duration_highr_seconds_count": 1,
        "http_request_duration_highr_seconds_sum": 0.25,
        "http_request_duration_seconds_count{handler=/v1/chat/completions,method=POST}": 1,
        "http_request_duration_seconds_sum{handler=/v1/chat/completions,method=POST}": 0.25,
    }


def test_a_path_without_a_route_has_no_handler() -> None:
    facts = begun()
    facts.end_http(404, handler="other", method="BREW", reason="not_found")
    assert facts.samples("http_requests", "vllm_obs_errors") == {
        "http_requests_total{handler=none,method=other,status=4xx}": 1,
        "vllm_obs_errors_total{type=not_found,where=http}": 1,
    }


def test_probes_and_scrapes_are_not_counted() -> None:
    facts = begun()
    for handler in ("/metrics", "/health", "/health/ready", "/ping", "/livez", "/readyz", "/version", "/load"):
        facts.end_http(503, handler=handler, method="GET", reason="not_ready")
        assert not is_counted(handler)
    assert facts.samples("http_", "vllm_obs_errors") == {}


def test_a_full_queue_turns_requests_away() -> None:
    facts = begun()
    facts.end_http(429, reason="overloaded")
    assert facts.samples("vllm:admission", "vllm_obs_errors") == {
        "vllm:admission_rejections_total{reason=max_num_queued_reqs}": 1,
        "vllm_obs_errors_total{type=overloaded,where=http}": 1,
    }


def test_too_many_waiting_tokens_turn_requests_away_too() -> None:
    facts = begun()
    facts.end_http(429, reason="too_many_queued_tokens")
    facts.end_http(429, reason="under_pressure")
    assert facts.samples("vllm:admission") == {
        "vllm:admission_rejections_total{reason=max_num_queued_tokens}": 1,
    }


def test_only_what_the_queue_has_no_room_for_counts_as_rejected() -> None:
    assert {reason: full for full, reason in REASON_OF.items()} == REJECTED_BY
    facts = begun()
    facts.end_http(429, reason="under_pressure")
    facts.end_http(503, reason=CUT_OFF[0])
    assert facts.samples("vllm:admission") == {}


def test_what_a_stalled_engine_cannot_take_is_counted_by_its_reason() -> None:
    facts = begun()
    facts.end_http(503, reason="stalled")
    assert facts.samples("http_requests", "vllm_obs_errors") == {
        "http_requests_total{handler=/v1/chat/completions,method=POST,status=5xx}": 1,
        "vllm_obs_errors_total{type=stalled,where=http}": 1,
    }


def test_a_client_that_left_is_no_error_of_ours() -> None:
    facts = begun()
    facts.end_http(499)
    assert facts.samples("http_requests", "vllm_obs_errors") == {
        "http_requests_total{handler=/v1/chat/completions,method=POST,status=4xx}": 1
    }


@pytest.mark.parametrize(
    ("status", "group"), [(101, "1xx"), (200, "2xx"), (499, "4xx"), (599, "5xx"), (0, "other"), (700, "other")]
)
def test_statuses_are_grouped(status: int, group: str) -> None:
    assert status_group(status) == group


def test_genai_histograms_follow_the_conventions() -> None:
    facts = begun()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.run({"a": 1}, "a")
    facts.finish("a")
    facts.submit("b", max_tokens=9)
    facts.take("b")
    facts.run({"b": 10}, "b")
    facts.run({"b": 1}, "b")
    facts.end("b", "abort")
    facts.end_http()
    facts.end_http(500, reason="internal_error", handler="/v1/completions")
    facts.end_http(handler="/v1/models", method="GET")
    common = {
        "gen_ai.provider.name": "vllm_obs",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
    }
    chat = common | {"gen_ai.operation.name": "chat"}
    failed = common | {"gen_ai.operation.name": "text_completion", "error.type": "internal_error"}
    found = {
        (histogram.name, histogram.unit): [
            (dict(point.attributes), sum(point.counts)) for point in histogram.points
        ]
        for histogram in facts.view.genai_histograms()
    }
    assert found == {
        ("gen_ai.server.time_to_first_token", "s"): [(chat, 2)],
        ("gen_ai.server.time_per_output_token", "s"): [(chat, 1)],
        ("gen_ai.server.request.duration", "s"): [(chat, 1), (failed, 1)],
    }


def test_genai_series_have_a_bound() -> None:
    facts = begun()
    for number in range(1000):
        facts.end_http(500, reason=f"error-{number}")
    (duration,) = facts.view.genai_histograms()
    assert len(duration.points) == 257
    assert sum(sum(point.counts) for point in duration.points) == 1000
