"""The overview shows the verdict first, and the figures that the Observer answered with."""

from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.figures import number, seconds, share


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
