"""Stalls are metrics: zero from the start, one while they last, and counted by the kind of process."""

from metric_facts import MetricFacts

from vllm_obs.telemetry.records import ProcessStarted, StallBegun, StallEnded
from vllm_obs.telemetry.view import Source
from vllm_obs.telemetry.watchdog_metrics import StallMetrics, begin_stalls, kind_of

OBSERVER = Source("Observer", 9, 90, "")
STALL = StallBegun("0", "Worker_TP1", 7, 1, "executing", 3, "T", "It stands still.", 1, 11)
ENDED = StallEnded("0", "Worker_TP1", 7, 1, 20)


def shown(facts: MetricFacts) -> dict[str, float]:
    found = facts.samples("vllm_obs_stall", view=facts.view)
    return {name: number for name, number in found.items() if number}


def test_a_stall_is_a_level_while_it_lasts_and_a_count_for_ever() -> None:
    facts = MetricFacts()
    metrics = StallMetrics(facts.view.store)
    metrics.record(OBSERVER, STALL)
    metrics.record(OBSERVER, STALL._replace(engine="", role="APIServer_0"))
    assert shown(facts) == {
        "vllm_obs_stalled{role=api_server}": 1,
        "vllm_obs_stalled{role=worker}": 1,
        "vllm_obs_stalls_total{role=api_server}": 1,
        "vllm_obs_stalls_total{role=worker}": 1,
    }
    metrics.record(OBSERVER, ENDED)
    metrics.record(OBSERVER, STALL)
    metrics.record(OBSERVER, ENDED)
    assert shown(facts)["vllm_obs_stalls_total{role=worker}"] == 2
    assert "vllm_obs_stalled{role=worker}" not in shown(facts)


def test_what_is_of_no_engine_names_none() -> None:
    facts = MetricFacts()
    begin_stalls(facts.view.store, "0")
    series = [line for line in facts.text().splitlines() if 'role="api_server"' in line]
    assert series == ['vllm_obs_stalled{role="api_server"} 0.0', 'vllm_obs_stalls_total{role="api_server"} 0.0']


def test_a_stall_outlives_the_observer_that_found_it() -> None:
    facts = MetricFacts()
    metrics = StallMetrics(facts.view.store)
    metrics.record(OBSERVER, STALL)
    metrics.record(OBSERVER._replace(generation=91), ProcessStarted("Observer", 10, 1, 1))
    assert shown(facts)["vllm_obs_stalled{role=worker}"] == 1
    metrics.record(OBSERVER._replace(generation=91), ENDED)
    assert shown(facts) == {"vllm_obs_stalls_total{role=worker}": 1}


def test_kinds_are_a_closed_set() -> None:
    roles = ("EngineCore_DP3", "Worker_DP1_TP0", "APIServer_2", "Launcher", "Observer", "x")
    kinds = ["engine_core", "worker", "api_server", "launcher", "other", "other"]
    assert [kind_of(role) for role in roles] == kinds
