import shutil
import subprocess
import sys

import pytest
from library_exposition import library_text
from metric_facts import MODEL, TRACED, MetricFacts
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from vllm_obs.telemetry.catalogue import BY_NAME, CATALOGUE
from vllm_obs.telemetry.exposition import Exposition
from vllm_obs.telemetry.metric_series import Exemplar

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TRACE_ID = TRACED.split("-")[1]


def served(**settings: bool) -> MetricFacts:
    """A run with one traced request."""
    facts = MetricFacts(**settings)
    facts.describe()
    facts.submit("a", trace_parent=TRACED, http_id="h")
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.run({"a": 1}, "a")
    facts.finish("a")
    facts.end_http(http_id="h", trace_parent=TRACED)
    return facts


def family_names(facts: MetricFacts) -> set[str]:
    lines = [line.split() for line in facts.text().splitlines() if line.startswith("# TYPE")]
    return {words[2] for words in lines}


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain", "text/html,application/xml;q=0.9"])
def test_text_is_the_default(accept: str) -> None:
    facts = served()
    body, content_type = Exposition(facts.view).render(accept, facts.now)
    assert content_type == TEXT_TYPE
    assert b"# EOF" not in body
    assert b"_created" not in body


def test_openmetrics_comes_when_it_is_asked_for() -> None:
    facts = served()
    body, content_type = Exposition(facts.view).render(OPENMETRICS, facts.now)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert len(list(parse_openmetrics(body.decode()))) == len(list(facts.view.shown()))


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_the_text_is_the_librarys_to_the_byte(accept: str) -> None:
    facts = served(enable_mfu_metrics=True, show_hidden_metrics=True)
    exposition = Exposition(facts.view)
    assert exposition.render(accept, facts.now)[0] == library_text(facts.view, accept)
    numbers = [1e6, 999_999.5, 123_456_789.25, 1e-7, -3.5, 2**53, float("inf"), float("-inf"), float("nan"), 0.1]
    store = facts.view.store
    for place, number in enumerate(numbers):
        store.value("vllm_obs_stalled", f'{place} "quoted" \\ {chr(10)}', "other").set(number)
    histogram = store.histogram("vllm:request_params_n", "0", MODEL)
    histogram.observe(0.5)
    histogram.observe(1e9, Exemplar(TRACE_ID, 1e9, 1_700_000_000.25))
    assert exposition.render(accept, facts.now)[0] == library_text(facts.view, accept)
    histogram.restore([[1.0, 2e6], [1, 2, 3], 5e7])
    body, _ = exposition.render(accept, facts.now)
    assert body == library_text(facts.view, accept)
    assert b'le="2e+06"' in body


def test_what_is_shown_no_longer_is_not_kept() -> None:
    facts = served()
    exposition = Exposition(facts.view)
    exposition.render("", facts.now)
    family = facts.view.store.families["http_requests_total"]
    assert set(exposition._heads[family.metric.name]) == set(family.series) != set()
    family.series.clear()
    exposition.render("", facts.now)
    assert exposition._heads[family.metric.name] == {}


def test_both_formats_say_the_same() -> None:
    facts = served()
    texts = (parse_text(facts.text()), parse_openmetrics(facts.text(OPENMETRICS)))
    as_text, as_openmetrics = (
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text
            for sample in family.samples
        }
        for text in texts
    )
    assert as_text == as_openmetrics


def test_exemplars_lead_to_the_traced_request() -> None:
    facts = served()
    exemplars = {
        sample.name: sample.exemplar.labels
        for family in parse_openmetrics(facts.text(OPENMETRICS))
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert set(exemplars) == {
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:request_inference_time_seconds_bucket",
        "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket",
        "vllm:request_time_per_output_token_seconds_bucket",
        "vllm_obs_request_stage_seconds_bucket",
        "http_requests_total",
        "http_request_duration_seconds_bucket",
        "http_request_duration_highr_seconds_bucket",
    }
    assert list(exemplars.values()) == [{"trace_id": TRACE_ID}] * len(exemplars)
    assert TRACE_ID not in facts.text()


def test_a_request_that_is_not_sampled_leaves_no_exemplar() -> None:
    facts = MetricFacts()
    facts.describe()
    facts.end_http(trace_parent=TRACED[:-1] + "0")
    assert TRACE_ID not in facts.text(OPENMETRICS)


def test_all_that_is_always_there_is_there_before_any_request() -> None:
    facts = MetricFacts()
    facts.describe()
    always = {metric.name for metric in CATALOGUE if metric.when == "always"}
    assert family_names(facts) == always
    silent = {name for name in always if not facts.view.store.families[name].series}
    # These have a series for each route, process or phase.
    assert {name for name in silent if "engine" in BY_NAME[name].labels} == set()
    assert {name for name in silent if name.startswith("vllm:")} == set()


def test_metrics_behind_flags_come_with_their_flags() -> None:
    facts = MetricFacts(enable_mfu_metrics=True, show_hidden_metrics=True)
    facts.describe()
    assert family_names(facts) == set(BY_NAME)


def test_without_statistics_http_processes_and_telemetry_remain() -> None:
    facts = served(disable_log_stats=True)
    prefixes = {name.partition("_")[0] for name in family_names(facts)}
    assert prefixes == {"http", "process", "python", "vllm"}
    assert [name for name in family_names(facts) if name.startswith("vllm:")] == []
    assert facts.samples("http_requests_total") == {
        "http_requests_total{handler=/v1/chat/completions,method=POST,status=2xx}": 1
    }


def test_buckets_are_cumulative_and_named_as_the_library_names_them() -> None:
    facts = served()
    name = "vllm:request_params_n_bucket"
    found = [
        (sample.labels["le"], sample.value)
        for family in parse_text(facts.text())
        for sample in family.samples
        if sample.name == name
    ]
    assert found == [("1.0", 1), ("2.0", 1), ("5.0", 1), ("10.0", 1), ("20.0", 1), ("+Inf", 1)]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_complains_of_vllms_own_names_only() -> None:
    facts = served(enable_mfu_metrics=True, show_hidden_metrics=True)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=facts.text(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in checked.stderr.splitlines() if not line.endswith("should not contain ':'")]
    assert complaints == ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix']


def test_the_library_is_loaded_by_the_exposition_only() -> None:
    script = "import sys, vllm_obs.telemetry.metrics; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
