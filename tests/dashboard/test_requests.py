"""The requests page lists what the Observer lists, and tells one request with the Observer's own figures."""

from itertools import pairwise
from typing import Any

import pytest
from inspector_pages import shown, texts
from observer_states import Answers, KeptSource, answers_of
from streamlit.testing.v1 import AppTest

from vllm_obs.dashboard.figures import nanoseconds, number
from vllm_obs.dashboard.request_compare import difference_columns, difference_words
from vllm_obs.dashboard.request_filters import NO_FILTERS
from vllm_obs.dashboard.request_lanes import MAX_INTERVALS, StepRun, lane_of, pieces_of, step_runs
from vllm_obs.dashboard.request_list import KEPT_WORDS, counted_words, frozen_words, refused_words
from vllm_obs.dashboard.request_waterfall import STAGE_WORDS, stage_columns
from vllm_obs.dashboard.source import install
from vllm_obs.telemetry.stages import STAGES

LIST = "/inspect/requests"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def one_of(answers: Answers, state: str = "ended") -> str:
    """The id of a request of which everything is kept."""
    rows = (row for row in answers[f"{LIST}&limit=200"]["requests"] if row["state"] == state)
    return str(next(row["request_id"] for row in rows if f"{LIST}/{row['request_id']}" in answers))


def columns(page: AppTest, index: int) -> dict[str, list[Any]]:
    """A table's columns."""
    return {str(name): list(values) for name, values in page.dataframe[index].value.items()}


def button(page: AppTest, label: str) -> Any:
    return next(each for each in page.button if each.label == label)


def plain(page: AppTest) -> str:
    return texts(page).replace("\\", "")


def test_list_is_the_observers_newest_first() -> None:
    answers = answers_of("incident")
    rows = answers[LIST]["requests"]
    page = shown("requests", KeptSource(answers))
    table = columns(page, 0)
    assert table["id"] == [row["request_id"] for row in rows]
    first = {name: values[0] for name, values in table.items()}
    assert (first["prompt"], first["output"], first["cached"], first["preempted"], first["account"]) == (
        rows[0]["num_prompt_tokens"], rows[0]["num_output_tokens"], rows[0]["num_cached_tokens"],
        rows[0]["num_preemptions"], rows[0]["account"],
    )  # fmt: skip
    assert first["seconds"] == pytest.approx(rows[0]["latency_ns"] / 1e9)


def test_a_page_says_of_how_many_it_is_and_leads_to_the_next() -> None:
    answers = answers_of("incident")
    content = answers[LIST]
    answers[f"{LIST}&limit=200"] = content | {"num_found": 1340, "num_before": 0, "cursor": "17:a-0"}
    following = content | {
        "requests": content["requests"][:3],
        "num_found": 1340,
        "num_before": 1337,
        "cursor": None,
    }
    answers[f"{LIST}&cursor=17:a-0&limit=200"] = following
    page = shown("requests", KeptSource(answers))
    num_shown = len(content["requests"])
    assert f"1 to {num_shown} of 1\u202f340 requests" in texts(page)
    button(page, "Next page ›").click().run()
    assert page.query_params["cursor"] == "17:a-0"
    assert "1\u202f338 to 1\u202f340 of 1\u202f340 requests" in texts(page)
    assert button(page, "Next page ›").disabled
    button(page, "First page").click().run()
    assert "cursor" not in page.query_params


def test_filters_of_the_address_combine_and_are_asked_for() -> None:
    answers = answers_of("incident")
    rows = answers[LIST]["requests"][:2]
    key = f"{LIST}&account=team-a&failed_only=true&limit=200&min_seconds=2.5&slow_only=true&state=live&text=abc"
    answers[key] = answers[LIST] | {"requests": rows, "num_found": 2, "num_before": 0, "min_seconds": 2.5}
    page = shown("requests", KeptSource(answers), state="live", failed="1", slow="1", account="team-a", min="2.5",
                 text="abc")  # fmt: skip
    assert columns(page, 0)["id"] == [row["request_id"] for row in rows]
    assert "**2 requests** that took at least 2.50 s, newest first" in texts(page)
    button(page, "Clear").click().run()
    assert columns(page, 0)["id"] == [row["request_id"] for row in answers[LIST]["requests"]]
    assert not set(page.query_params) & {"state", "failed", "slow", "account", "min", "text"}


def test_an_input_writes_itself_into_the_address_and_begins_at_the_first_page() -> None:
    page = shown("requests", KeptSource(answers_of("incident")), cursor="17:a-0", state="ended")
    page.text_input(key="filter-text").set_value(" three ").run()
    page.number_input(key="filter-min").set_value(1.5).run()
    assert {name: page.query_params[name] for name in ("state", "text", "min")} == {
        "state": "ended", "text": "three", "min": "1.5",
    }  # fmt: skip
    assert "cursor" not in page.query_params


@pytest.mark.parametrize("least", ["nan", "inf", "-1", "soon", "1e99"])
def test_what_is_wrong_in_the_address_is_left_out(least: str) -> None:
    page = shown("requests", KeptSource(answers_of("idle")), state="nowhere", min=least, failed="yes")
    assert not page.exception
    assert page.number_input(key="filter-min").value == 0.0
    assert columns(page, 0)["id"] == [row["request_id"] for row in answers_of("idle")[LIST]["requests"]]


def test_filters_that_nothing_fits_say_so_and_how_long_ended_ones_are_kept() -> None:
    empty: dict[str, Any] = {
        "requests": [],
        "cursor": None,
        "refused": [],
        "num_live": 3,
        "num_ended": 7,
        "num_found": 0,
    }
    words = counted_words(empty, NO_FILTERS._replace(text="x"))
    assert words == f"**No request fits these filters.** 3 live and 7 ended are known. {KEPT_WORDS}"
    assert counted_words(empty, NO_FILTERS).startswith("**Nobody has asked anything yet.**")
    assert KEPT_WORDS == "Of those that ended the last 10\u202f000 are kept, for 10 minutes."


def test_one_that_runs_without_a_token_is_named() -> None:
    rows: list[dict[str, Any]] = [
        {"request_id": "a-0", "state": "running", "last_token_age_seconds": 2.5},
        {"request_id": "b-0", "state": "running", "last_token_age_seconds": 12.0},
        {"request_id": "c-0", "state": "waiting", "last_token_age_seconds": 60.0},
        {"request_id": "d-0", "state": "running", "last_token_age_seconds": None},
    ]
    words = frozen_words(rows).replace("\\", "")
    assert "**2 requests** run" in words
    assert "[b-0](/requests?request=b-0) for 12.0 s" in words
    assert frozen_words(rows[2:]) == "None of these runs without a token for 2.00 s or more."


def test_refused_requests_have_their_status_reason_and_path() -> None:
    answers = answers_of("stalled")
    rows = answers[LIST]["refused"]
    table = columns(shown("requests", KeptSource(answers)), 1)
    assert (table["status"], table["reason"], table["path"]) == (
        [row["status"] for row in rows], [row["reason"] for row in rows], [row["handler"] for row in rows],
    )  # fmt: skip
    many = {"refused": rows[:1], "num_refused": 340}
    assert "the newest 1 of 340" in refused_words(many, NO_FILTERS)
    assert "not shown with these filters" in refused_words({"refused": []}, NO_FILTERS._replace(state="live"))


def test_one_request_is_explained_first_with_the_observers_figures() -> None:
    answers = answers_of("incident")
    name = one_of(answers)
    row = answers[f"{LIST}/{name}"]["sequences"][0]
    page = shown("requests", KeptSource(answers), request=name)
    assert not page.exception
    read = plain(page)
    for sentence in row["explanation"]:
        assert sentence in read
    values = {metric.label: metric.value for metric in page.metric}
    assert (values["Took"], values["Output tokens"], values["Preempted"], values["Last token"]) == (
        nanoseconds(row["latency_ns"]), number(row["num_output_tokens"]), number(row["num_preemptions"]), "–",
    )  # fmt: skip
    stages = columns(page, 0)
    assert sum(stages["seconds"][:-1]) == pytest.approx(row["latency_ns"] / 1e9)
    assert (stages["stage"][-1], stages["what"][-1]) == ("sum", "all of its latency, to the nanosecond")
    company = columns(page, 3)
    assert dict(zip(company["request"], company["steps"], strict=True)) == row["companions"]
    codes = [code.value for code in page.code]
    assert f"vllm-obs explain {name}" in codes
    assert f"/kv?engine={row['engine']}&request={name}" in read
    assert f"/scheduler?engine={row['engine']}&step={row['first_step']}" in read


def test_a_live_request_has_no_ending_and_says_what_it_is_in() -> None:
    answers = answers_of("saturated")
    name = one_of(answers, "running")
    row = answers[f"{LIST}/{name}"]["sequences"][0]
    page = shown("requests", KeptSource(answers), request=name)
    values = {metric.label: metric.value for metric in page.metric}
    assert (values["So far"], values["Ending"]) == (nanoseconds(row["latency_ns"]), "–")
    assert f"now in **{row['stage']}**" in plain(page)
    assert "is shown as it is now" in plain(page)


def test_all_sequences_of_a_request_are_there_and_one_is_chosen() -> None:
    answers = answers_of("incident")
    name = one_of(answers)
    content = answers[f"{LIST}/{name}"]
    first = content["sequences"][0] | {"num_sequences": 2}
    second = first | {"request_id": "other-1", "sequence_index": 1, "latency_ns": first["latency_ns"] - 1}
    answers[f"{LIST}/both"] = content | {"name": "both", "sequences": [second, first], "num_sequences": 2}
    page = shown("requests", KeptSource(answers), request="both")
    assert name in plain(page), "the one that ended last is told of"
    page = shown("requests", KeptSource(answers), request="both", sequence="1")
    assert "`other-1`" in plain(page)


def test_of_several_requests_with_one_label_one_can_be_chosen() -> None:
    answers = answers_of("incident")
    row = answers[f"{LIST}/{one_of(answers)}"]["sequences"][0]
    rows = [row, row | {"request_id": "other-0", "http_id": "other"}]
    answers[f"{LIST}/label"] = {
        "name": "label", "num_requests": 2, "num_sequences": 2, "num_left_out": 0, "sequences": rows, "http": [],
    }  # fmt: skip
    page = shown("requests", KeptSource(answers), request="label")
    assert "2 requests are known by label." in plain(page)
    assert columns(page, 0)["id"] == [row["request_id"], "other-0"]


def test_one_of_which_only_http_tells_says_so() -> None:
    answers = answers_of("stalled")
    refused = answers[LIST]["refused"][0]
    answers[f"{LIST}/{refused['http_id']}"] = {
        "name": "x", "num_requests": 1, "num_sequences": 0, "num_left_out": 0, "sequences": [], "http": [refused],
    }  # fmt: skip
    page = shown("requests", KeptSource(answers), request=refused["http_id"])
    assert f"It was answered with {refused['status']} ({refused['reason'].replace('_', ' ')})" in plain(page)


def test_an_unknown_request_is_told_in_plain_words() -> None:
    page = shown("requests", KeptSource(answers_of("idle")), request="no *body*")
    assert not page.exception
    assert "No request is known by “no *body*”." in plain(page)
    assert KEPT_WORDS in plain(page)


def test_page_held_at_a_step_says_that_the_request_is_shown_as_it_is_now() -> None:
    answers = answers_of("incident")
    page = shown("requests", KeptSource(answers), request=one_of(answers), step="12")
    assert "The page is held at step 12; the request is shown as it is now" in plain(page)
    assert "not of step 12" in plain(shown("requests", KeptSource(answers), step="12"))


def test_a_trace_has_its_link() -> None:
    answers = answers_of("incident")
    name = one_of(answers)
    content = answers[f"{LIST}/{name}"]
    answers[f"{LIST}/{TRACE}"] = content | {"sequences": [content["sequences"][0] | {"trace_id": TRACE}]}
    page = shown("requests", KeptSource(answers), request=TRACE)
    assert "no address is known; `--trace-url`" in plain(page)
    install(KeptSource(answers), "http://jaeger:16686/trace/{trace_id}")
    assert f"[open it](http://jaeger:16686/trace/{TRACE})" in plain(page.run()), "the template is the dashboard's"


def test_two_requests_are_compared_stage_by_stage() -> None:
    this = {
        "external_id": "a",
        "request_id": "a-0",
        "stage_ns": {"queue": 0, "prefill": 10**9, "decode": 5 * 10**9},
    }
    other = {
        "external_id": "",
        "request_id": "b",
        "stage_ns": {"queue": 2 * 10**9, "prefill": 10**9, "decode": 10**9},
    }
    assert difference_words(this, other) == (
        "It took **2.00 s longer** than b: longer by 4.00 s of **decode** (making output tokens); "
        "less by 2.00 s of **queue** (waiting to be scheduled for the first time)."
    )
    assert difference_words(this, this) == "It took as long as a."
    assert difference_columns(this, other) == {
        "stage": ["queue", "prefill", "decode", "sum"],
        "this": [0.0, 1.0, 5.0, 6.0],
        "other": [2.0, 1.0, 1.0, 4.0],
        "more": [-2.0, 0.0, 4.0, 2.0],
    }
    answers = answers_of("incident")
    name = one_of(answers)
    page = shown("requests", KeptSource(answers), request=name, **{"with": name})
    assert "It took as long as" in plain(page)
    missing = shown("requests", KeptSource(answers), request=name, **{"with": "nobody"})
    assert "No request to compare with is known by nobody." in plain(missing)


def test_many_intervals_are_drawn_together_and_cover_the_same_time() -> None:
    begun = list(range(0, 3000, 2))
    row = {
        "intervals": {
            "stages": ["queue" if place % 2 else "preempted" for place in range(len(begun))],
            "begun_at": begun,
            "ended_at": [at + 2 for at in begun],
            "reasons": ["kv_blocks"] * len(begun),
        }
    }
    pieces = pieces_of(row)
    assert len(pieces) <= MAX_INTERVALS < len(begun)
    assert sum(piece.length for piece in pieces) == 3000
    assert all(before.ended_at == after.begun_at for before, after in pairwise(pieces))
    assert sum(piece.num_together for piece in pieces) == len(begun)


def test_every_stage_of_a_kept_request_is_drawn_for_as_long_as_it_lasted() -> None:
    answers = answers_of("incident")
    row = answers[f"{LIST}/{one_of(answers)}"]["sequences"][0]
    lane = lane_of(row)
    drawn: dict[str, int] = {}
    for stage, begin, end, _, _ in lane["pieces"]:
        drawn[stage] = drawn.get(stage, 0) + end - begin
    assert drawn == lane["stage_ns"] == {stage: length for stage, length in row["stage_ns"].items() if length}
    assert lane["pieces"][-1][2] == row["latency_ns"]


def test_steps_are_told_in_runs_with_what_they_were_for() -> None:
    row = {
        "num_prompt_tokens": 20,
        "steps": {
            "step": [3, 4, 5, 6, 9],
            "num_scheduled_tokens": [16, 4, 1, 1, 22],
            "num_computed_tokens": [0, 16, 20, 21, 0],
        },
    }
    assert step_runs(row) == [StepRun(3, 1, 16, 0), StepRun(4, 1, 4, 0), StepRun(5, 2, 1, 1), StepRun(9, 1, 22, 2)]


def test_every_stage_has_its_words_and_sums_name_what_is_missing() -> None:
    assert set(STAGE_WORDS) == set(STAGES)
    row = {"stage_ns": {"queue": 3 * 10**9, "decode": 0}, "latency_ns": 4 * 10**9}
    assert stage_columns(row)["what"][-1] == "1.00 s less than its latency"


def test_address_without_filters_asks_for_all() -> None:
    assert NO_FILTERS.query() == {
        "state": None, "failed_only": None, "slow_only": None, "account": None, "min_seconds": None, "text": None,
        "cursor": None, "limit": 200,
    }  # fmt: skip
