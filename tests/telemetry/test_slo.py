"""Which sequences kept to the objectives, by what the others failed, and how many a second were good."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fact_stream import FactStream

from vllm_obs.telemetry import slo as slo_module
from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.checkpoint import Checkpoint
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.slo import Slo
from vllm_obs.telemetry.slo_judgement import Miss, judge
from vllm_obs.telemetry.slo_targets import SloTargets
from vllm_obs.telemetry.view import SourceGone

NS = 10**9


class Judged:
    """A run of sequences, each alone, held to some objectives."""

    def __init__(self, targets: SloTargets | None) -> None:
        self.slo = Slo(targets)
        self.state = RunState()
        self.state.add_view(self.slo)
        self.stream = FactStream()
        self.num_applied = 0
        self.stream.describe()

    def serve(
        self, name: str, first_ms: int = 1, gap_ms: int = 1, *, num_tokens: int = 3, how: str = "stop"
    ) -> None:
        """A sequence that waits so long for its first step, and has its steps take so long."""
        self.stream.submit(name, num_prompt_tokens=4, account="key-1", external_id=f"mine-{name}")
        self.stream.pass_time(first_ms * 10**6)
        for _ in range(num_tokens):
            self.stream.step([name], parts={"forward": gap_ms * 10**6})
        if how == "abort":
            self.stream.abort(name)
        else:
            self.stream.finish(name, how)
        self.apply()

    def apply(self) -> None:
        for source, record in self.stream.facts[self.num_applied :]:
            self.state.apply(source, record)
        self.num_applied = len(self.stream.facts)

    def ledger(self, name: str) -> SequenceLedger:
        ledger = self.state.ended.get(name)
        assert ledger is not None
        return ledger


@pytest.fixture
def judged() -> Judged:
    """good keeps everything; slow begins late, slack has slow tokens, both has both; broken fails, left leaves."""
    judged = Judged(SloTargets(ttft=0.05, tpot=0.02, e2e=1.0))
    judged.serve("good")
    judged.serve("slow", first_ms=100)
    judged.serve("slack", gap_ms=40)
    judged.serve("both", first_ms=2000, gap_ms=30)
    judged.serve("broken", how="error")
    judged.serve("left", first_ms=900, how="abort")
    return judged


def worst_of(judged: Judged, name: str) -> Miss:
    judgement = judge(judged.ledger(name), judged.slo.targets)
    assert judgement is not None
    assert judgement.worst is not None
    return judgement.worst


def test_each_is_counted_under_what_it_missed_by_most(judged: Judged) -> None:
    slo = judged.slo
    assert (slo.num_attained, dict(slo.num_missed)) == (1, {"ttft": 2, "tpot": 1, "error": 1})
    assert judge(judged.ledger("left"), slo.targets) is None
    both = judge(judged.ledger("both"), slo.targets)
    assert both is not None
    assert both.missed == ("ttft", "tpot", "e2e")


def test_a_miss_names_the_stage_that_took_most(judged: Judged) -> None:
    ttft = worst_of(judged, "slow")
    assert (ttft.objective, ttft.limit, ttft.stage, ttft.stage_ns) == ("ttft", 0.05, "queue", 100_020_000)
    assert ttft.measured == pytest.approx(0.1, rel=0.05)
    tpot = worst_of(judged, "slack")
    assert (tpot.objective, tpot.stage) == ("tpot", "decode")
    assert tpot.measured == pytest.approx(0.04, rel=0.05)
    assert worst_of(judged, "broken").objective == "error"


def test_a_sequence_without_tokens_or_with_one_has_kept_what_it_has_none_of() -> None:
    judged = Judged(SloTargets(ttft=0.001, tpot=0.000001))
    judged.serve("one", first_ms=0, num_tokens=1, gap_ms=0)
    judgement = judge(judged.ledger("one"), SloTargets(tpot=0.000001))
    assert judgement == ((), None)


def test_windows_hold_what_ended_in_them(judged: Judged) -> None:
    now = (judged.stream.now // NS + 1) * NS
    view = judged.slo.view(now)
    minute = view["windows"]["1m"]
    assert view["targets"] == {"ttft": 0.05, "tpot": 0.02, "e2e": 1.0}
    assert (view["num_attained"], view["num_missed"]) == (1, {"ttft": 2, "tpot": 1, "error": 1})
    seconds = now // NS - 1
    assert {name: minute[name] for name in minute if name != "worst"} == {
        "seconds": seconds,
        "num_attained": 1,
        "num_missed": 4,
        "attainment": 0.2,
        "goodput_requests_per_second": 1 / seconds,
        "missed_by_objective": {"ttft": 2, "tpot": 2, "e2e": 1, "error": 1},
    }
    assert [miss["request_id"] for miss in minute["worst"]] == ["broken", "both", "slow", "slack"]
    assert minute["worst"][0]["times_limit"] is None
    assert (minute["worst"][1]["external_id"], minute["worst"][1]["account"]) == ("mine-both", "key-1")
    assert minute["worst"][1]["times_limit"] == pytest.approx(40, rel=0.05)
    later = judged.slo.view(now + 100 * NS)["windows"]
    assert (later["1m"]["attainment"], later["1m"]["worst"], later["5m"]["attainment"]) == (None, [], 0.2)


def test_the_metrics_say_the_same(judged: Judged) -> None:
    store, now = MetricStore(CATALOGUE), (judged.stream.now // NS + 1) * NS
    judged.slo.show(store, now)
    assert shown(store, "vllm_obs_slo_attained_total") == {(): 1}
    assert shown(store, "vllm_obs_slo_missed_total") == {("ttft",): 2, ("tpot",): 1, ("e2e",): 0, ("error",): 1}
    assert shown(store, "vllm_obs_slo_target_seconds") == {("ttft",): 0.05, ("tpot",): 0.02, ("e2e",): 1.0}
    assert shown(store, "vllm_obs_slo_attainment_ratio") == {("1m",): 0.2, ("5m",): 0.2}
    judged.slo.show(store, now + 100 * NS)
    assert shown(store, "vllm_obs_slo_attainment_ratio") == {("5m",): 0.2}
    assert shown(store, "vllm_obs_goodput_requests_per_second")["1m",] == 0


def shown(store: MetricStore, name: str) -> dict[tuple[str, ...], Any]:
    return {labels: series.number for labels, series in store.families[name].series.items()}  # type: ignore[union-attr]


def test_without_targets_nothing_is_counted_or_shown() -> None:
    judged, store = Judged(None), MetricStore(CATALOGUE)
    judged.serve("slow", first_ms=5000)
    judged.slo.show(store, judged.stream.now)
    assert (judged.slo.is_set, judged.slo.summary(judged.stream.now)) == (False, None)
    assert judged.slo.view(judged.stream.now)["targets"] == {}
    assert shown(store, "vllm_obs_slo_missed_total") == shown(store, "vllm_obs_slo_attainment_ratio") == {}


def test_the_summary_is_the_last_minute(judged: Judged) -> None:
    now = (judged.stream.now // NS + 1) * NS
    assert judged.slo.summary(now) == {
        "targets": {"ttft": 0.05, "tpot": 0.02, "e2e": 1.0},
        "window": "1m",
        "attainment": 0.2,
        "goodput_requests_per_second": 1 / (now // NS - 1),
        "num_attained": 1,
        "num_missed": 4,
    }


def test_one_whose_api_server_died_is_an_error() -> None:
    judged = Judged(SloTargets(ttft=1.0))
    judged.stream.submit("cut")
    judged.apply()
    judged.state.apply(judged.stream.api, SourceGone())
    assert (judged.slo.num_attained, judged.slo.num_missed) == (0, Counter({"error": 1}))


def test_it_goes_on_from_a_checkpoint(judged: Judged, tmp_path: Path) -> None:
    other = Slo(judged.slo.targets)
    Checkpoint(tmp_path / "checkpoint", {"slo": judged.slo}).save([], 1)
    resumed = Checkpoint(tmp_path / "checkpoint", {"slo": other}).load()
    assert resumed is not None
    assert resumed.lost_parts == []
    now = (judged.stream.now // NS + 1) * NS
    assert other.view(now) == judged.slo.view(now)
    with pytest.raises(ValueError, match="objectives of version 99"):
        other.restore([99, *other.state()[1:]])


def test_seconds_and_misses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slo_module, "MAX_MISSES", 3)
    judged = Judged(SloTargets(ttft=0.000001))
    for number in range(8):
        judged.serve(f"r-{number}")
        judged.stream.pass_time(100 * NS)
    _, _, seconds, misses = judged.slo.state()
    assert len(seconds) <= 5
    assert [Miss(*miss).request_id for miss in misses] == ["r-5", "r-6", "r-7"]
    assert judged.slo.num_missed == Counter({"ttft": 8})
