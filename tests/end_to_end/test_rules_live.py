"""The delivered rules over a live server: every record has data, and an alert fires only when an engine stops."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from load_client import CHAT, Asked, LoadClient
from observed_server import ObservedServer, await_that, synthetic
from prometheus import COMMAND, REASON, Prometheus
from prometheus_run import await_rules, prometheus_run, rule_files, without_data

FLAGS = ("--slo", "ttft=30,tpot=30,e2e=60", "--stall-timeout", "3", "--num-gpu-blocks-override", "130")
STALLED = "VllmObsEngineStalled"
FIRING_SECONDS = 3 * (3 + 1 + 5 + 3)
"""Three times what is promised: the stall timeout and a second, the alert's own wait, a scrape and two looks."""

pytestmark = pytest.mark.skipif(COMMAND is None, reason=REASON)


class Watched(NamedTuple):
    """A server that has had some load, and the Prometheus that has scraped it meanwhile."""

    server: ObservedServer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with (
        synthetic(*FLAGS) as server,
        prometheus_run(server.port) as scraper,
    ):
        scraper.await_scrape()
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        client = LoadClient(server.port, 24)
        for turn in range(2):
            bodies = [{"prompt": [n + 9] * 40, "max_tokens": 30, "ignore_eos": True} for n in range(12)]
            client.run(Asked(f"{turn}-{n}", body) for n, body in enumerate(bodies))
            client.run([Asked(f"chat-{turn}", chat, CHAT)])
            scraper.await_scrape()
        await_rules(scraper)
        yield Watched(server, scraper)


def records() -> list[str]:
    groups = [group for path in rule_files() for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]


def alerts(prometheus: Prometheus, state: str) -> list[dict[str, Any]]:
    found = prometheus.get("alerts")["alerts"]
    return [alert for alert in found if alert["state"] == state]


def test_every_record_has_data(watched: Watched) -> None:
    assert len(records()) > 40
    assert without_data(watched.prometheus, (f'{{__name__="{name}"}}' for name in records()), seconds=20) == []


def test_what_is_recorded_is_what_the_server_says(watched: Watched) -> None:
    ask = watched.prometheus.query
    assert ask("job:vllm_obs_slo_missed:ratio_rate5m")[0][1] == 0
    assert ask("job:vllm_obs_http_errors:ratio_rate1h")[0][1] == 0
    assert 0 < ask("instance:vllm_obs_memory:ratio")[0][1] < 1
    shares = [value for _, value in ask("engine_limit:vllm_obs_binding_limit:ratio_rate5m")]
    assert sum(shares) == pytest.approx(1)
    lengths = ask("engine:vllm_step_tokens:mean_rate5m")
    assert [set(labels) for labels, _ in lengths] == [{"__name__", "job", "instance", "model_name", "engine"}]


def test_no_alert_fires_while_all_is_well_and_one_does_when_the_engine_is_stopped(watched: Watched) -> None:
    assert alerts(watched.prometheus, "firing") == []
    engine = watched.server.server.child("EngineCore")
    body = {"prompt": [5] * 20, "max_tokens": 400, "ignore_eos": True}
    asking = threading.Thread(target=watched.server.complete, kwargs={"label": "held-up", **body})
    engine.send_signal(signal.SIGSTOP)
    try:
        asking.start()
        held_up = await_that(lambda: _named(watched.prometheus, STALLED, "firing"), FIRING_SECONDS)
    finally:
        engine.send_signal(signal.SIGCONT)
        asking.join(60)
    (alert,) = held_up
    assert {name: alert["labels"][name] for name in ("engine", "role", "severity")} == {
        "engine": "0",
        "role": "engine_core",
        "severity": "critical",
    }
    assert alert["annotations"]["summary"].startswith("Engine 0 of 127.0.0.1:")
    assert Path(alert["annotations"]["runbook_url"].partition("#")[0]).name == "runbook.md"
    await_that(lambda: not _named(watched.prometheus, STALLED, "firing"), FIRING_SECONDS)


def _named(prometheus: Prometheus, name: str, state: str) -> list[dict[str, Any]]:
    return [alert for alert in alerts(prometheus, state) if alert["labels"]["alertname"] == name]
