"""Every query of every board, asked of a real Prometheus that scrapes a live server under load."""

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from board_reading import Asked, asked
from observed_server import NAME, observed
from otlp_receiver import http_receiver
from prometheus import COMMAND, REASON, Prometheus
from prometheus_run import JOB, has_data, is_promql, prometheus_run, substituted, without_data
from steady_load import UNHURRIED, steady_load

from vllm_obs.grafana.boards import documents
from vllm_obs.grafana.row_devices import DEVICES

SLO = "ttft=30,tpot=0.000001"
"""Kept by requests for one token, and by no others."""
FLAGS = ("--num-gpu-blocks-override", "110", "--max-num-batched-tokens", "128", "--slo", SLO)
OVER_SECONDS = 60.0
"""How far back a panel looks."""
DATA_SECONDS = 30.0
"""How long the first data may take to come: a rate needs two scrapes in which its series was there."""

MAY_BE_ZERO = {
    # Nothing went wrong.
    "Stalled engines",
    "Stalls",
    "Incidents in this time",
    "Incidents by cause",
    "Stalls by culprit",
    "Records lost",
    "Laws broken",
    "Checkpoints failed",
    "Spans dropped",
    "Exports failed",
    "Spans not made",
    "Failed in this time",
    "Errors (B)",  # dropped messages
    "Restarts in this time",
    "Turned away",
    "Wasted work",
    # There is no GPU where this is tested.
    "Padding of CUDA graphs",
    "GPUs busy with steps",
    # It depends on the machine what the load is held up by.
    "What holds it up now",
    "What held it up, over time",
    "Short of KV cache",
    "Waiting with room left",
    "Full with others waiting",
    "Waiting for blocks",
    # Rounded by the clock of the kernel, or by nothing being there at the moment.
    "CPU of the Observer",
    "Garbage collection",
    "Longest wait",
}

NEEDS_A_GPU = {f"vllm-obs / Processes and telemetry: {panel.title}" for panel in DEVICES.panels}

DOCUMENTS = {name.removesuffix(".json"): document for name, document in documents().items()}

pytestmark = pytest.mark.skipif(COMMAND is None, reason=REASON)


class Watched(NamedTuple):
    """A Prometheus that has data, and the values that the boards' variables have when one server is chosen."""

    prometheus: Prometheus
    values: dict[str, str]

    def queries(self, board: dict[str, Any]) -> dict[str, Asked]:
        """The board's queries as Grafana would send them."""
        found = (query for query in asked(board) if query.place.rpartition(" (")[0] not in NEEDS_A_GPU)
        return {substituted(query.expr, self.values): query for query in found}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with (
        http_receiver() as receiver,
        observed(
            tmp_path_factory.mktemp("boards") / "model",
            *FLAGS,
            *("--otlp-traces-endpoint", receiver.url),
            env=UNHURRIED,
        ) as server,
        prometheus_run(server.port) as prometheus,
        steady_load(server.port),
    ):
        values = {
            "job": JOB,
            "instance": re.escape(f"127.0.0.1:{server.port}").replace("\\", "\\\\"),
            "model_name": NAME,
            "engine": "0",
            "percentile": "0.95",
            "promised": "0.99",
        }
        one = Watched(prometheus, values)
        slowest = substituted(
            'rate(vllm:e2e_request_latency_seconds_count{job=~"$job"}[$__rate_interval]) > 0', values
        )
        assert without_data(prometheus, [slowest], seconds=2 * DATA_SECONDS) == []
        yield one


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_query_of_every_panel_gives_data(watched: Watched, name: str) -> None:
    queries = watched.queries(DOCUMENTS[name])
    assert [query.place for text, query in queries.items() if not is_promql(watched.prometheus, text)] == []
    instant = [text for text, query in queries.items() if query.is_instant]
    over_time = [text for text, query in queries.items() if not query.is_instant]
    missing = without_data(watched.prometheus, instant, seconds=DATA_SECONDS)
    missing += without_data(watched.prometheus, over_time, OVER_SECONDS, DATA_SECONDS)
    assert [queries[text].place for text in missing] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_the_load_moves_is_seen_to_move(watched: Watched, name: str) -> None:
    moving = {
        f"({text}) != 0": query
        for text, query in watched.queries(DOCUMENTS[name]).items()
        if MAY_BE_ZERO.isdisjoint((panel := query.place.partition(": ")[2], panel.rpartition(" (")[0]))
    }
    still = without_data(watched.prometheus, moving, OVER_SECONDS, DATA_SECONDS)
    assert [moving[text].place for text in still] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_annotations_look_at_what_is_there(watched: Watched, name: str) -> None:
    annotated = [each for each in DOCUMENTS[name]["annotations"]["list"] if "expr" in each]
    assert len(annotated) >= 2
    for each in annotated:
        query = substituted(each["expr"].removesuffix(" > 0"), watched.values)
        assert has_data(watched.prometheus, query, OVER_SECONDS), each["name"]


def test_a_restart_is_marked_at_its_time(watched: Watched) -> None:
    (marked,) = (each for each in DOCUMENTS["vllm-obs-fleet"]["annotations"]["list"] if each["name"] == "Restarts")
    assert marked["useValueForTime"] == "on"
    ((_, wall_ms),) = watched.prometheus.query(substituted(marked["expr"], watched.values))
    assert 0 < time.time() - wall_ms / 1000 < 300


def test_the_variables_have_choices(watched: Watched) -> None:
    variables = [each for each in DOCUMENTS["vllm-obs-engine"]["templating"]["list"] if each["type"] == "query"]
    assert [each["name"] for each in variables] == ["job", "model_name", "instance", "engine"]
    for each in variables:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"])
        assert found
        chosen = {"match[]": substituted(found[1], watched.values)}
        values = watched.prometheus.get(f"label/{found[2]}/values", **chosen)
        assert len(values) == 1
        assert re.fullmatch(watched.values[each["name"]].replace("\\\\", "\\"), values[0])


def test_traces_are_found_by_exemplars(watched: Watched) -> None:
    times = {"start": f"{time.time() - OVER_SECONDS:.3f}", "end": f"{time.time():.3f}"}
    for query in ("vllm:time_to_first_token_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket"):
        found = watched.prometheus.get("query_exemplars", query=query, **times)
        traces = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        assert traces
        assert all(re.fullmatch(r"[0-9a-f]{32}", trace) for trace in traces)
