"""The overview shows the verdict first, and the figures that the Observer answered with."""

from typing import Any

import pytest
from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.figures import number, seconds, share
from vllm_obs.dashboard.overview_engines import standstill
from vllm_obs.dashboard.palette import LEVEL_COLOURS, STAGE_COLOURS


def test_verdict_comes_first_with_what_helps_and_what_does_not() -> None:
    answers = answers_of("saturated")
    verdict = answers["/inspect/verdict&window=1m"]
    page = shown("overview", KeptSource(answers))
    read = texts(page).replace("\\", "")
    assert verdict["says"] in read
    first = verdict["findings"][0]
    for line in (*first["helps"][:2], *first["helps_not"][:2]):
        assert line in read
    assert f"num preemptions {number(first['evidence']['num_preemptions'])}" in read


def test_metrics_are_the_observers() -> None:
    answers = answers_of("saturated")
    page = shown("overview", KeptSource(answers), window="1m")
    values = {metric.label: metric.value for metric in page.metric}
    rates = answers["/inspect/state"]["throughput"]["10s"]
    engine = answers["/inspect/state"]["engines"][0]
    quantiles = answers["/inspect/quantiles&window=1m"]["quantiles"]
    assert values["Tokens out /s"] == number(rates["output_tokens_per_second"])
    assert values["Steps /s"] == number(rates["steps_per_second"])
    assert values["Running"] == number(engine["num_running"])
    assert values["Waiting"] == number(engine["num_waiting"])
    assert values["Between tokens, p95"] == seconds(quantiles["itl"]["p95"])
    assert values["End to end, p95"] == "–", "nothing has ended, which is not 0 s"


def test_first_in_line_has_its_reason() -> None:
    answers = answers_of("saturated")
    engine = answers["/inspect/state"]["engines"][0]
    assert engine["head_reason"].replace("_", " ") in texts(shown("overview", KeptSource(answers)))


def test_engine_label_and_reason_are_texts() -> None:
    answers = answers_of("saturated")
    state = answers["/inspect/state"]
    engine = {**state["engines"][0], "engine": "<b>0</b>", "head_reason": "[x](http://y)"}
    answers["/inspect/state"] = {**state, "engines": [engine]}
    page = shown("overview", KeptSource(answers))
    bodies = "".join(each.proto.body for each in page.get("html"))
    assert "Engine &lt;b&gt;0&lt;/b&gt;, last 10 s" in bodies
    assert "<b>0</b>" not in bodies
    assert r"**\[x\]\(http\://y\)**" in texts(page)


def test_targets_in_the_address_are_asked_for() -> None:
    answers = answers_of("saturated")
    window = {"attainment": 0.25, "goodput_requests_per_second": 1.5, "num_missed": 3, "worst": []}
    answers["/inspect/slo&targets=ttft=0.5"] = {"targets": {"ttft": 0.5}, "windows": {"1m": window, "5m": window}}
    page = shown("overview", KeptSource(answers), slo="ttft=0.5")
    kept = next(metric for metric in page.metric if metric.label == "Kept to it, 1 min")
    assert kept.value == share(0.25)
    assert kept.delta == "goodput 1.50 /s, 3 missed"


def test_targets_that_are_none_are_refused_in_words() -> None:
    answers = answers_of("saturated")
    answers["/inspect/slo&targets=soon"] = {"error": {"message": "targets: soon is no target", "code": 422}}
    assert "soon is no target" in texts(shown("overview", KeptSource(answers), slo="soon"))


def test_stalled_engine_is_named() -> None:
    page = shown("overview", KeptSource(answers_of("stalled")))
    assert "Worker_TP1" in texts(page).replace("\\", "")


def bodies_of(answers: dict[str, Any]) -> str:
    return "".join(each.proto.body for each in shown("overview", KeptSource(answers)).get("html"))


def test_a_stalled_engine_is_not_idle() -> None:
    answers = answers_of("stalled")
    state = answers["/inspect/state"]
    (stall,) = state["stalls"]["current"]
    age = (state["clock"]["monotonic_at"] - stall["stuck_at"]) / 1e9
    bodies = bodies_of(answers)
    assert f"Engine 0 has stood still for {seconds(age)} in step {stall['step']}" in bodies
    assert f"stands still {share(age / 10)}" in bodies
    assert f"color:{LEVEL_COLOURS['bad']}" in bodies
    assert STAGE_COLOURS["stalled"] in bodies
    assert "idle" not in bodies


@pytest.mark.parametrize(
    ("engine", "begun_ago", "expected"),
    [
        ({"num_running": 3}, 5.2, (5.2, 7)),
        ({"num_running": 3}, 1.9, None),
        ({"num_running": 3, "state": "paused"}, 5.2, None),
        ({"num_running": 3, "state": "dead"}, 5.2, None),
        ({"num_running": 3, "last_step_age_seconds": 60.0, "last_step": 7}, 0.1, None),
        ({"num_running": 3, "last_step_age_seconds": 2.5, "last_step": 6}, None, (2.5, 6)),
        ({"num_running": 0, "last_step_age_seconds": 60.0, "last_step": 6}, None, None),
        ({"num_running": 3, "last_step_age_seconds": None, "last_step": 0}, None, None),
    ],
)
def test_who_stands_still(engine: dict[str, Any], begun_ago: float | None, expected: Any) -> None:
    now = 10**12
    under_way = {"step": 7, "begun_at": now - round(begun_ago * 1e9)} if begun_ago is not None else None
    row = {"engine": "0", "state": "awake", "under_way": under_way, **engine}
    assert standstill({"clock": {"monotonic_at": now}, "stalls": {"current": []}}, row) == expected


def test_what_cannot_be_told_is_gray_and_does_not_stand_under_what_would_not_help() -> None:
    answers = answers_of("idle")
    doubt = "this run has been watched for 1 s, and at least 5 s are needed"
    told = {"word": "cannot_tell", "says": f"Cannot tell: {doubt}.", "cannot_tell": [doubt]}
    verdict = {**answers["/inspect/verdict&window=1m"], **told}
    answers["/inspect/verdict&window=1m"] = verdict
    page = shown("overview", KeptSource(answers), window="1m")
    texts_ = [each.value for each in page.markdown]
    assert ":gray-badge[cannot tell]" in "".join(texts_).replace("\\", "")
    assert sum(doubt in each.value for each in (*page.markdown, *page.caption)) == 1
    assert "**What would not**\n\n–" in texts_
    assert "**What would help**\n\n–" in texts_
