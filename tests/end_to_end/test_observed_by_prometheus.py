"""A real Prometheus scrapes a live server: vLLM's metrics are there as vLLM has them, with data where they ran."""

import csv
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from load_client import CHAT, Asked, LoadClient
from observed_server import MAX_MODEL_LEN, ObservedServer, await_that, synthetic
from prometheus import COMMAND, REASON, Prometheus, prometheus

TABLE = Path(__file__).parents[1] / "data" / "vllm_metrics.tsv"
PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_count", "_sum"), "summary": ("_count", "_sum")}
GENERATED = {"instance", "job", "le", "__name__"}
ABSENT = {
    # Features that this server does not have, or that did not happen in the run.
    "vllm:admission_rejections_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:mm_cache_hits_total",
    "vllm:mm_cache_queries_total",
    # Levels of an idle server.
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    # Nothing went wrong.
    "python_gc_objects_uncollectable_total",
}

pytestmark = pytest.mark.skipif(COMMAND is None, reason=REASON)


class Row(NamedTuple):
    """One metric as vLLM has it."""

    name: str
    type: str
    labels: str
    buckets: str
    when: str


ROWS = [Row(**row) for row in csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t")]
ALWAYS = [row for row in ROWS if row.when == "always"]


class Scraped(NamedTuple):
    """A server that all features ran on, and the Prometheus that has scraped it since."""

    server: ObservedServer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    flags = ("--num-gpu-blocks-override", "130", "--enable-mfu-metrics", "--max-num-batched-tokens", "64")
    with (
        synthetic(*flags) as server,
        prometheus(server.port) as scraper,
    ):
        body = {"prompt": [9] * 40, "max_tokens": 100, "ignore_eos": True}
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        client = LoadClient(server.port, 32)
        client.run(Asked(f"all-{n}", {**body, "prompt": [n + 9] * 40}) for n in range(30))
        client.run([Asked("again", body), Asked("chat", chat, CHAT)])
        client.run([Asked("and-again", body)])  # while it has blocks: those of the first time may be gone
        client.run([Asked("left", {**body, "max_tokens": 1500, "stream": True}, leave_events=1)])
        await_that(lambda: server.inspect("requests?limit=1")["num_live"] == 0)
        scraper.await_scrape()
        yield Scraped(server, scraper)


@pytest.mark.parametrize("row", ALWAYS, ids=lambda row: row.name)
def test_it_is_there_with_its_type_labels_and_buckets(scraped: Scraped, row: Row) -> None:
    # It asks for OpenMetrics, in which a counter's family goes without the suffix of its samples.
    family = row.name.removesuffix("_total") if row.type == "counter" else row.name
    known = scraped.prometheus.get("targets/metadata", metric=family)
    assert {each["type"] for each in known} == {row.type}
    assert all(each["help"] for each in known)
    for part in PARTS[row.type]:
        samples = scraped.prometheus.query(f'{{__name__="{row.name}{part}"}}')
        if row.name != "vllm:admission_rejections_total":
            assert samples, row.name
        labels = set(filter(None, row.labels.split(",")))
        assert all(set(found) - GENERATED == labels for found, _ in samples), samples[:1]
        assert row.name in ABSENT or sum(value for _, value in samples) > 0
    if row.type == "histogram":
        buckets = scraped.prometheus.query(f'{{__name__="{row.name}_bucket"}}')
        expected = [float(bound) for bound in row.buckets.split(",")]
        assert sorted({float(found["le"]) for found, _ in buckets}) == [*expected, float("inf")]


def test_those_of_a_feature_that_is_on_have_data(scraped: Scraped) -> None:
    rows = [row for row in ROWS if row.when == "--enable-mfu-metrics"]
    assert rows
    for row in rows:
        ((_, value),) = scraped.prometheus.query(f'{{__name__="{row.name}"}}')
        assert value > 0


def test_the_server_was_up_in_every_scrape(scraped: Scraped) -> None:
    assert scraped.prometheus.query("min_over_time(up[10m])")[0][1] == 1
    assert scraped.prometheus.query("max_over_time(scrape_duration_seconds[10m])")[0][1] < 3 * 1.0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_complains_of_vllms_own_names_only(scraped: Scraped) -> None:
    text = scraped.server.exposition()
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in checked.stderr.splitlines() if not line.endswith("should not contain ':'")]
    assert complaints == ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix']


def test_the_bounds_of_token_counts_follow_the_context_length() -> None:
    (row,) = (row for row in ROWS if row.name == "vllm:request_prompt_tokens")
    assert max(map(float, row.buckets.split(","))) <= MAX_MODEL_LEN
