"""With several engines, API servers and ranks every count is what it is with one of each, also when some die."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deployment_run import deployment_facts, next_life, told, with_another_server, without_engine
from synthetic_run import Facts
from verdict_run import VerdictRun

from vllm_obs.telemetry.incident_rows import open_requests, step_rows
from vllm_obs.telemetry.inspect_state import engine_view
from vllm_obs.telemetry.metrics import MetricsView
from vllm_obs.telemetry.metrics_settings import MetricsSettings
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.record_moments import shifted
from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineGivenUp,
    EngineRestarted,
    RequestEnded,
    RequestSubmitted,
)
from vllm_obs.telemetry.run_health import engines_down, given_up_engines, health_of
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.verdict_states import state_findings
from vllm_obs.telemetry.view import Source, SourceGone


def metrics_of(facts: Any) -> tuple[MetricsView, RunState]:
    view = MetricsView(MetricsSettings())
    return view, told(facts, view)


def endings(view: MetricsView) -> Counter[str]:
    """Ended sequences by how, over all engines."""
    found: Counter[str] = Counter()
    for labels, value in view.store.families["vllm:request_success_total"].series.items():
        found[labels[-1]] += int(value.number)
    return +found


def token_sums(view: MetricsView) -> dict[str, float]:
    names = ("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_max_tokens")
    sums = {name: sum(series.total for series in view.store.families[name].series.values()) for name in names}
    for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total"):
        sums[name] = sum(series.number for series in view.store.families[name].series.values())
    return sums


def num_submitted(facts: Any) -> int:
    return sum(isinstance(fact, RequestSubmitted) for _, fact in facts)


@pytest.fixture(scope="module")
def deployment() -> Facts:
    return deployment_facts(num_engines=2, num_api_servers=2)


def test_four_servers_and_two_engines_count_what_one_of_each_counts() -> None:
    single, _ = metrics_of(deployment_facts(1, 1))
    several, state = metrics_of(deployment_facts(2, 4))
    assert endings(several) == endings(single)
    assert token_sums(several) == token_sums(single)
    assert {labels[0] for labels in several.store.families["vllm:request_success_total"].series} != {"0"}
    assert (state.invariants.num_broken, len(state.sequences)) == (0, 0)


def test_every_law_holds_and_each_engine_has_its_own_steps_and_ranks(deployment: Facts) -> None:
    _, state = metrics_of(deployment)
    assert state.invariants.num_broken == 0
    assert sorted(state.engines) == ["0", "1"]
    for engine in state.engines.values():
        assert {len(step.workers) for step in engine.steps if step.planned.request_ids} == {2}
        assert {output.engine_index for step in engine.steps for output in step.outputs} == {int(engine.label)}
        assert {output.client_index for step in engine.steps for output in step.outputs} == {0, 1}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_killed_engine_ends_its_sequences_once_and_no_others(deployment: Facts, share: float) -> None:
    facts = without_engine(deployment, "1", share)
    view, state = metrics_of(facts)
    num_failed = sum(isinstance(fact, RequestEnded) and fact.finish_reason == "error" for _, fact in facts)
    found = endings(view)
    assert found["error"] == num_failed > 0
    assert sum(found.values()) == num_submitted(facts)
    assert (state.invariants.num_broken, len(state.sequences), sorted(state.engines)) == (0, 0, ["0"])
    assert [engine.label for engine in state.past_engines] == ["1"]


def test_an_engine_that_was_started_again_counts_on(deployment: Facts) -> None:
    dead = without_engine(deployment, "1", 0.5)
    again = next_life(deployment, "1", 2, gap_ns=10**9)
    view, state = metrics_of([*dead, *again])
    assert state.invariants.num_broken == 0
    assert sum(endings(view).values()) == num_submitted(dead) + num_submitted(again)
    assert sorted(state.engines) == ["0", "1"]
    assert state.engines["1"].described is not None
    assert state.engines["1"].described.generation == 1
    assert {len(step.workers) for step in state.engines["1"].steps if step.planned.request_ids} == {2}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_killed_api_server_ends_its_sequences_once_and_another_goes_on(deployment: Facts, share: float) -> None:
    facts = with_another_server(deployment, "APIServer_1", share)
    view, state = metrics_of(facts)
    num_ended = sum(isinstance(fact, RequestEnded) for _, fact in facts)
    found = endings(view)
    assert sum(found.values()) == num_submitted(facts)
    assert found["error"] == num_submitted(facts) - num_ended > 0
    assert (state.invariants.num_broken, len(state.sequences)) == (0, 0)


def test_what_is_told_of_a_dead_life_does_not_reach_the_next(deployment: Facts) -> None:
    """The records of a rank of the old life are read late, as those of another host may be."""
    dead = without_engine(deployment, "1", 0.5)
    late = [entry for entry in dead if entry[0].role == "Worker_DP1_TP1"]
    early = [entry for entry in dead if entry[0].role != "Worker_DP1_TP1"]
    again = next_life(deployment, "1", 2, gap_ns=10**9)
    state = told([*early, *again[: len(again) // 2], *late, *again[len(again) // 2 :]])
    workers = {worker.received_at for step in state.engines["1"].steps for worker in step.workers}
    assert min(workers) > max(fact.sampled_at for _, fact in late if hasattr(fact, "sampled_at"))


def test_ranks_on_another_host_whose_clock_is_behind_are_not_left_out(deployment: Facts) -> None:
    def elsewhere(source: Source) -> Source:
        return source._replace(host="node1") if source.role == "Worker_DP0_TP1" else source

    behind = [
        (elsewhere(source), shifted(record, -20_000_000) if elsewhere(source).host else record)
        for source, record in deployment
    ]
    _, state = metrics_of(behind)
    steps = [step for step in state.engines["0"].steps if step.planned.request_ids]
    assert {len(step.workers) for step in steps} == {2}
    begun = [(worker.received_at, step.planned.schedule_ended_at) for step in steps for worker in step.workers]
    assert all(received_at >= planned_at for received_at, planned_at in begun)


def test_the_verdict_names_the_engine_and_the_rank_that_holds_it_up() -> None:
    facts = deployment_facts(2, 2, seconds=30.0, regimes=("calm", "stalled_rank"))
    begun_at = next(record.received_at for _, record in facts if isinstance(record, RequestSubmitted))
    run = VerdictRun()
    run.tell(facts, until=begun_at + 30 * 10**9)
    (finding,) = [each for each in run.verdict.findings("1m", run.now) if each.name == "stalled_rank"]
    assert (finding.engines, finding.evidence["rank"]) == (("1",), 1.0)
    assert run.verdict.document("1m", run.now)["says"].startswith("Engine 1: ")


def test_a_server_with_an_engine_less_is_degraded_and_names_it(deployment: Facts, tmp_path: Path) -> None:
    observer = Observer("run", tmp_path)
    told(without_engine(deployment, "1", 0.5), state=observer.state)
    assert engines_down(observer.state) == ["1"]
    died_at = next(each.exited_at for each in observer.state.processes.all() if each.role == "EngineCore_DP1")
    health = health_of(observer, died_at + 2 * 10**9)
    assert health.word == "degraded"
    assert health.says.startswith("Engine 1 is gone, and 1 of 2 go on. ")
    (finding,) = state_findings(observer, died_at + 2 * 10**9)
    assert (finding.name, finding.engines, finding.is_severe) == ("engine_down", ("1",), True)
    assert finding.says.startswith("1 of 2 engines is gone: EngineCore_DP1 (pid 1102) died of SIGKILL 2.0 s ago. ")


def test_an_incident_of_one_engine_has_its_own_requests_and_steps(deployment: Facts) -> None:
    state = told(deployment[: len(deployment) // 2])
    at = max(engine.last_planned.schedule_ended_at for engine in state.engines.values() if engine.last_planned)
    everybody = open_requests(state, at)
    own = {label: open_requests(state, at, engine=label) for label in ("0", "1")}
    for label, ledgers in own.items():
        assert {ledger.engine for ledger in ledgers} == {label}
        assert {row["engine"] for row in step_rows(state, at, label)} == {label}
    assert sum(map(len, own.values())) == sum(ledger.engine != "" for ledger in everybody)
    (server, *_) = {ledger.api_generation for ledger in everybody}
    of_server = open_requests(state, at, [server], is_of_gone=True)
    assert 0 < len(of_server) < len(everybody)


def test_an_engine_that_died_too_often_is_given_up_until_it_is_there_again(
    deployment: Facts, tmp_path: Path
) -> None:
    observer = Observer("run", tmp_path)
    told(without_engine(deployment, "1", 0.5), state=observer.state)
    launcher = Source("Launcher", 7, 70, "")
    observer.facts.record(launcher, EngineGivenUp("1", 600.0, 5))
    assert given_up_engines(observer).keys() == {"1"}
    words = "Engine 1 has died too often and is given up: it is tried again 10 minutes after that."
    assert words in health_of(observer, 10**9).says
    (finding,) = state_findings(observer, 10**9)
    assert "it has died too often and is given up: it is tried again 10 minutes after that." in finding.says
    gone, *_ = [engine for engine in observer.state.past_engines if engine.label == "1"]
    assert engine_view(observer, gone, 10**9, 10**9)["state"] == "given up"
    observer.facts.record(launcher, EngineRestarted("1", 4, "", 0, 5, 6))
    assert given_up_engines(observer) == {}
    observer.facts.record(launcher, EngineGivenUp("1", 0.0, 7))
    assert "given up: it is not tried again." in health_of(observer, 10**9).says


def test_a_server_whose_engine_came_back_is_well(deployment: Facts, tmp_path: Path) -> None:
    observer = Observer("run", tmp_path)
    again = next_life(deployment, "1", 2, gap_ns=10**9)
    told([*without_engine(deployment, "1", 0.5), *again], state=observer.state)
    assert engines_down(observer.state) == []
    assert health_of(observer, 0).word in ("ok", "idle")


def test_the_last_of_every_label_that_is_empty_is_kept_and_few_others(deployment: Facts) -> None:
    state = told(deployment)
    core = next(source for source, _ in deployment if source.role == "EngineCore_DP0")
    described = next(
        record for source, record in deployment if source == core and isinstance(record, EngineDescribed)
    )
    for label in ("2", "3", "4"):
        other = core._replace(role=f"EngineCore_DP{label}", engine=label, generation=1000 + int(label))
        state.apply(other, described)
        state.apply(other, SourceGone())
    for generation in range(5):
        again = core._replace(generation=2000 + generation)
        state.apply(again, described)
    assert [engine.label for engine in state.past_engines] == ["2", "3", "4", "0", "0"]
