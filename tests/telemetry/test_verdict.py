"""The verdict is a word, a sentence and its evidence; it says so when there is none, or when it cannot tell."""

from typing import Any

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream
from verdict_run import NS, VerdictRun

from vllm_obs.telemetry.catalogue_own import OWN_METRICS
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import LoopSampled, OutputsTaken, StallBegun, StallEnded
from vllm_obs.telemetry.verdict import MAX_LOSSES, MAX_STANDING
from vllm_obs.telemetry.verdict_names import FINDINGS
from vllm_obs.telemetry.view import RecordsLost, Source

MS = 10**6
STEP_MS = 50
PARTS = {"schedule": MS, "prepare": MS, "forward": (STEP_MS - 5) * MS, "sample": MS, "update": MS}
MODEL = "test-model"


class Load:
    """A run of one engine in which `step` takes about 50 ms."""

    def __init__(self, **values: Any) -> None:
        self.run = VerdictRun(**values)
        self.stream = FactStream(num_blocks=256)
        self.told = 0
        self.stream.describe(max_num_seqs=2, num_blocks=256, block_size=4)

    def step(self, *rows: str, num_steps: int = 1, **options: Any) -> None:
        for _ in range(num_steps):
            self.stream.step(rows, **{"parts": PARTS, **options})
        self.catch_up()

    def catch_up(self) -> None:
        self.run.tell(self.stream.facts[self.told :])
        self.told = len(self.stream.facts)

    def document(self, window: str = "10s", later_ns: int = 0) -> dict[str, Any]:
        return self.run.verdict.document(window, self.run.now + later_ns)


@pytest.fixture
def load() -> Load:
    return Load()


def serve(load: Load, seconds: int, num_waiting: int = 0, **options: Any) -> None:
    """Two run, so many wait."""
    for name in ("a", "b", *(f"w{number}" for number in range(num_waiting))):
        if name not in load.stream.sequences:
            load.stream.submit(name, num_prompt_tokens=4, max_tokens=5000)
    load.step("a", "b", num_steps=1000 * seconds // STEP_MS, **options)


def test_a_load_that_waits_for_nothing_is_well(load: Load) -> None:
    serve(load, 12)
    document = load.document()
    picked = {name: document[name] for name in ("word", "severity", "says", "findings", "cannot_tell", "window")}
    assert picked == {
        "word": "well",
        "severity": "none",
        "says": "Nothing holds requests back.",
        "findings": [],
        "cannot_tell": [],
        "window": "10s",
    }
    assert list(document["limits"]["0"]) == ["underloaded"]


def test_places_that_are_taken_are_told_with_the_figures(load: Load) -> None:
    serve(load, 12, num_waiting=3, head_reason="max_num_seqs")
    document = load.document()
    (finding,) = document["findings"]
    assert (document["word"], document["severity"]) == ("max_num_seqs", "severe")
    assert document["says"] == finding["says"]
    assert finding["says"].startswith("All 2 places for running requests are taken ")
    assert finding["says"].endswith(" % of the time, and 3.0 requests wait then.")
    assert finding["helps"] == ["raise --max-num-seqs from 2 to about 5"]
    assert finding["engines"] == ["0"]
    assert finding["evidence"]["num_waiting_mean"] == 3.0


def test_it_is_idle_when_nobody_asks(load: Load) -> None:
    serve(load, 5)
    for name in ("a", "b"):
        load.stream.finish(name)
    load.catch_up()
    document = load.document(later_ns=20 * NS)
    assert (document["word"], document["says"]) == ("idle", "Idle: no request in this time.")


def test_a_young_run_cannot_be_judged(load: Load) -> None:
    serve(load, 2, num_waiting=0)
    document = load.document()
    assert document["word"] == "cannot_tell"
    assert document["says"].startswith("Cannot tell: this run has been watched for ")
    assert VerdictRun().verdict.document("10s", NS)["word"] == "cannot_tell"


def test_where_nothing_moves_nothing_is_said_to_be_well(load: Load) -> None:
    serve(load, 5, num_waiting=1, head_reason="max_num_seqs")
    document = load.document(later_ns=30 * NS)
    assert document["says"] == "Cannot tell: engine 0 has 3 requests and no step has ended in this time."


def test_lost_records_are_a_doubt_for_as_long_as_the_window(load: Load) -> None:
    serve(load, 12)
    load.run.state.apply(ENGINE, RecordsLost(7))
    assert load.document()["says"] == "Cannot tell: 7 records of EngineCore_DP0 were lost in this time."
    load.run.state.apply(ENGINE, RecordsLost(0))
    serve(load, 12)
    assert load.document()["word"] == "well"
    assert load.document("1m")["cannot_tell"] == ["7 records of EngineCore_DP0 were lost in this time"]


def test_what_the_watchdog_sees_comes_first_and_passes(load: Load) -> None:
    serve(load, 12, num_waiting=3, head_reason="max_num_seqs")
    begun = StallBegun("0", "EngineCore_DP0", 200, -1, "executing", 9, "T", "…", load.run.now, load.run.now)
    load.run.tell([(API_SERVER, begun)])
    document = load.document()
    assert [finding["name"] for finding in document["findings"]] == ["stalled_rank", "max_num_seqs"]
    assert document["says"].endswith(" Also: max_num_seqs.")
    load.run.tell([(API_SERVER, StallEnded("0", "EngineCore_DP0", 200, begun.stuck_at, load.run.now))])
    assert load.document()["word"] == "max_num_seqs"


def test_a_long_step_is_a_stall_where_the_watchdog_saw_it_and_else_slow(load: Load) -> None:
    serve(load, 5)
    begun_at = load.run.now
    load.step("a", "b", parts={**PARTS, "forward": 2 * NS})
    serve(load, 1)
    (slow,) = load.document()["findings"]
    assert (slow["says"].split(":")[0], load.document()["severity"]) == ("Rank 0 was slow", "warning")
    stall = StallBegun("0", "EngineCore_DP0", 200, -1, "executing", 9, "S", "…", begun_at, begun_at + NS)
    load.run.tell([(API_SERVER, stall), (API_SERVER, StallEnded("0", *stall[1:3], begun_at, begun_at + 2 * NS))])
    (stood,) = load.document()["findings"]
    assert stood["says"].startswith("Rank 0 stood still for 2.0 s of 7 s: step ")
    assert load.document()["severity"] == "severe"
    serve(load, 11)
    assert load.document()["word"] == "well"


@pytest.mark.parametrize("hiccup_ms", [300, 600, 900])
def test_one_hiccup_under_a_second_changes_nothing(load: Load, hiccup_ms: int) -> None:
    serve(load, 12)
    load.step("a", "b", parts={**PARTS, "forward": hiccup_ms * MS})
    serve(load, 2)
    late = outputs(load.run.now - hiccup_ms * MS, load.run.now)
    load.run.tell([(API_SERVER, late._replace(sent_at=late.sent_at + number)) for number in range(20)])
    assert {window: load.document(window)["word"] for window in ("10s", "1m")} == {"10s": "well", "1m": "well"}


def test_tokens_that_always_wait_for_the_api_server_are_told(load: Load) -> None:
    serve(load, 12)
    begun_at = load.run.now - 8 * NS
    waits = [outputs(begun_at + n * 50 * MS, begun_at + (n * 50 + 300) * MS) for n in range(100)]
    load.run.tell([(API_SERVER, wait) for wait in waits])
    document = load.document()
    assert document["word"] == "slow_frontend"
    assert document["says"].startswith("Tokens wait 300 ms for the API server on their way out")


def test_a_step_that_takes_far_longer_than_its_like_is_told_while_it_lasts(load: Load) -> None:
    serve(load, 12)
    load.stream.step(("a", "b"), parts=PARTS, is_answered=False)
    load.catch_up()
    assert load.document(later_ns=NS // 2)["word"] == "well"
    document = load.document(later_ns=5 * NS)
    assert document["word"] == "stalled_rank"
    assert document["says"].startswith("A step has not answered for ")


def test_a_pause_is_told_while_it_lasts_and_after(load: Load) -> None:
    serve(load, 5)
    load.stream.change_state("paused")
    load.catch_up()
    load.stream.submit("w")
    load.catch_up()
    assert load.document(later_ns=8 * NS)["word"] == "paused"
    load.stream.pass_time(8 * NS)
    load.stream.change_state("awake")
    serve(load, 1, num_waiting=1, head_reason="max_num_seqs")
    assert "paused" in [finding["name"] for finding in load.document()["findings"]]


def test_a_late_event_loop_is_the_front_ends(load: Load) -> None:
    serve(load, 12)
    load.run.tell([(API_SERVER, LoopSampled(0, load.run.now - 2 * NS, 0.6, 1, 1, 1))])
    assert load.document()["word"] == "well"
    load.run.tell([(API_SERVER, LoopSampled(0, load.run.now - 3 * NS, 1.2, 1, 1, 1))])
    document = load.document()
    assert (document["word"], document["severity"]) == ("slow_frontend", "severe")


def test_of_several_engines_the_sentence_says_which() -> None:
    load = Load()
    other = Load()
    other.stream.engine = Source("EngineCore_DP1", 201, 2001, "1")
    other.stream.facts.clear()
    other.stream.describe(max_num_seqs=2, num_blocks=256, block_size=4)
    other.run = load.run
    serve(load, 12)
    for name in ("x", "y", "z"):
        other.stream.submit(name, num_prompt_tokens=4, max_tokens=5000)
    other.step("x", "y", num_steps=240, head_reason="max_num_seqs")
    document = load.document()
    assert document["says"].startswith("Engine 1: All 2 places ")
    assert document["findings"][0]["engines"] == ["1"]
    assert set(document["limits"]) == {"0", "1"}


def test_a_window_of_the_past_can_be_asked_for(load: Load) -> None:
    serve(load, 12, num_waiting=3, head_reason="max_num_seqs")
    at = load.run.now
    for number in range(3):
        load.stream.finish(f"w{number}")
    serve(load, 12)
    assert load.document()["word"] == "well"
    assert load.run.verdict.document("10s", at, is_past=True)["word"] == "max_num_seqs"


def test_in_a_recording_time_stands_still_at_its_end() -> None:
    load = Load(is_live=False)
    serve(load, 4, num_waiting=1, head_reason="max_num_seqs")
    assert load.document()["word"] == "max_num_seqs"


def test_the_metrics_say_the_same() -> None:
    store = MetricStore(OWN_METRICS)
    load = Load(store=store)
    serve(load, 12, num_waiting=3, head_reason="max_num_seqs")
    load.run.verdict.show(load.run.now)
    shown = {finding: store.value("vllm_obs_verdict", finding).number for finding in FINDINGS}
    assert {finding for finding, number in shown.items() if number} == {"max_num_seqs"}
    seconds = store.value("vllm_obs_binding_limit_seconds_total", "0", MODEL, "max_num_seqs").number
    assert seconds == pytest.approx(sum(step_seconds(load)))
    ratios = store.histogram("vllm_obs_step_floor_ratio", "0", MODEL)
    # All that took as long as ever, but the first few of each size, which are to learn from.
    assert ratios.counts[0] == ratios.num_observed > 200


def test_a_stalls_gauge_falls_when_it_is_over_and_the_minute_still_tells_of_it() -> None:
    store = MetricStore(OWN_METRICS)
    load = Load(store=store)
    serve(load, 12)
    stuck_at, gauge = load.run.now, store.value("vllm_obs_verdict", "stalled_rank")
    stall = StallBegun("0", "Worker_TP0", 7, 0, "executing", 9, "S", "…", stuck_at, stuck_at + 5 * NS)
    load.run.tell([(API_SERVER, stall)])
    load.run.verdict.show(stuck_at + 6 * NS)
    assert gauge.number == 1
    load.step("a", "b", parts={**PARTS, "forward": 8000 * MS})
    load.run.tell([(API_SERVER, StallEnded("0", "Worker_TP0", 7, stuck_at, load.run.now))])
    serve(load, 2)
    load.run.verdict.show(load.run.now)
    assert gauge.number == 0
    assert load.document("1m")["word"] == "stalled_rank"


def test_what_it_keeps_is_bounded(load: Load) -> None:
    serve(load, 1)
    for number in range(2 * MAX_STANDING):
        stall = StallBegun("0", "Worker", number, 0, "executing", 9, "S", "…", 1, 2)
        load.run.tell([(API_SERVER, stall)])
        load.run.tell([(API_SERVER, StallEnded("0", "Worker", number, 1, 2))] if number % 2 else [])
        load.run.tell([(API_SERVER, stall._replace(role="Again"))])
        load.run.state.apply(API_SERVER, RecordsLost(1))
    assert len(load.run.verdict._standing) == len(load.run.verdict._over) == MAX_STANDING
    assert len(load.run.verdict._losses) == MAX_LOSSES


def outputs(sent_at: int, processed_at: int) -> OutputsTaken:
    return OutputsTaken(1, 0, 0, sent_at, sent_at, processed_at, processed_at, 1)


def step_seconds(load: Load) -> list[float]:
    steps = load.run.state.engines["0"].steps
    return [(step.over_at - step.planned.schedule_begun_at) / NS for step in steps]
