"""The scheduler page says who waits, why and who runs, or tells a step whole, with the Observer's own figures."""

from typing import Any

import pytest
from inspector_pages import shown, texts
from observer_states import Answers, KeptSource, answers_of
from streamlit.testing.v1 import AppTest

from vllm_obs.dashboard.pages.scheduler import LOAD
from vllm_obs.dashboard.scheduler_tables import CHOSEN, chosen_name
from vllm_obs.dashboard.scheduler_words import (
    EXECUTION_WORDS,
    HELP,
    LIMIT_WORDS,
    REASON_WORDS,
    execution_words,
    head_sentence,
    step_sentences,
)
from vllm_obs.telemetry.binding_limit import BINDING_LIMITS
from vllm_obs.telemetry.eager_reasons import EXECUTIONS
from vllm_obs.telemetry.wait_reasons import WAIT_REASONS

QUEUES: dict[str, Any] = {
    "engine": "0",
    "step": 512,
    "head_reason": "kv_blocks",
    "num_waiting": 3,
    "num_counted": 3,
    "by_reason": {"head_of_line": 2, "kv_blocks": 1},
    "waiting": [
        {"request_id": "a-0", "place": 0, "reason": "kv_blocks", "seconds": 2.5, "num_prompt_tokens": 70,
         "state": "preempted"},
        {"request_id": "b-0", "place": 1, "reason": "head_of_line", "seconds": 1.25, "num_prompt_tokens": 80,
         "state": "waiting"},
    ],
    "num_running": 1,
    "running": [
        {"request_id": "c-0", "stage": "prefill", "num_prompt_tokens": 200, "num_output_tokens": 0,
         "num_cached_tokens": 48, "num_computed_tokens": 150, "num_scheduled_tokens": 102, "num_blocks": 10,
         "num_preemptions": 1, "last_token_age_seconds": None},
    ],
}  # fmt: skip
NOBODY = {**QUEUES, "head_reason": "", "num_waiting": 0, "num_counted": 0, "by_reason": {}, "waiting": [],
          "num_running": 0, "running": []}  # fmt: skip


def answers(queues: Any = None) -> Answers:
    return answers_of("saturated") | {"/inspect/queues": queues or QUEUES}


def kept_step(found: Answers) -> int:
    """A kept step that has neighbours."""
    return int(found["/inspect/steps"]["steps"]["step"][-3])


def table(page: AppTest, index: int) -> dict[str, list[Any]]:
    """A table's columns."""
    return {str(name): list(values) for name, values in page.dataframe[index].value.items()}


def test_live_page_shows_both_queues_as_the_observer_has_them() -> None:
    page = shown("scheduler", KeptSource(answers()))
    assert not page.exception
    assert "3 requests wait. The head of the line waits because **there are not enough free KV blocks**" in texts(
        page
    )
    assert table(page, 0) == {
        "place": [1, 2],
        "request": ["a-0", "b-0"],
        "reason": ["kv_blocks", "head_of_line"],
        "seconds": [2.5, 1.25],
        "prompt": [70, 80],
        "state": ["preempted", "waiting"],
    }
    running = table(page, 1)
    assert {name: values[0] for name, values in running.items() if name != "age"} == {
        "request": "c-0", "stage": "prefill", "share": 0.75, "computed": 150, "total": 200, "scheduled": 102,
        "blocks": 10, "output": 0, "cached": 48, "preemptions": 1,
    }  # fmt: skip
    assert "the first 2 of 3 in the line" in texts(page)


def test_reasons_have_bars_as_long_as_they_are_common() -> None:
    page = shown("scheduler", KeptSource(answers()))
    (bars,) = [each.proto.body for each in page.get("html") if "Waiting requests by reason" in each.proto.body]
    assert bars.index("<b>head_of_line</b>") < bars.index("<b>kv_blocks</b>")
    assert "width:66.7%" in bars
    assert "width:33.3%" in bars


def test_where_nobody_runs_it_says_how_to_load_the_server() -> None:
    assert LOAD in texts(shown("scheduler", KeptSource(answers(NOBODY))))


def test_an_observer_that_knows_no_queues_is_told_of() -> None:
    found = answers()
    del found["/inspect/queues"]
    assert "nothing is kept of /inspect/queues" in "".join(
        note.value for note in shown("scheduler", KeptSource(found)).info
    )


def test_of_several_engines_one_is_chosen_and_a_pause_at_the_others_step_ends() -> None:
    found = answers()
    (engine,) = found["/inspect/state"]["engines"]
    found["/inspect/state"] = {**found["/inspect/state"], "engines": [engine, {**engine, "engine": "1"}]}
    page = shown("scheduler", KeptSource(found), step=str(kept_step(found)))
    page.button_group[0].set_value("1").run()
    assert (page.query_params.get("engine"), page.query_params.get("step")) == ("1", None)
    assert not page.exception


@pytest.mark.parametrize("name", ["scheduler", "kv"])
def test_link_to_another_engine_moves_the_selector(name: str) -> None:
    found = answers()
    (engine,) = found["/inspect/state"]["engines"]
    found["/inspect/state"] = {**found["/inspect/state"], "engines": [engine, {**engine, "engine": "1"}]}
    page = shown(name, KeptSource(found), engine="0")
    assert page.button_group[0].value == "0"
    page.query_params["engine"] = "1"
    page.run()
    assert page.button_group[0].value == "1"


def test_going_through_steps_leaves_nothing_behind_for_each() -> None:
    found = answers()
    steps = found["/inspect/steps"]["steps"]["step"][-6:]
    page = shown("scheduler", KeptSource(found), step=str(steps[0]))

    def names() -> set[str]:
        return {
            name
            for name in page.session_state._state.filtered_state
            if name.startswith(("shown:", "queue", "batch"))
        }

    first = names()
    for step in steps:
        page.query_params["step"] = str(step)
        page.run()
        assert not page.exception
    assert {name for name in names() if name.startswith("shown:")} == {"shown:queue", "shown:batch"}
    assert len(names()) == len(first)


def test_held_at_a_step_the_figures_are_those_of_the_api() -> None:
    found = answers()
    number = kept_step(found)
    step = found[f"/inspect/steps/{number}"]
    planned, answered = step["planned"], step["answered"]
    waiting = QUEUES["waiting"][1:]
    found[f"/inspect/steps/{number}/queue"] = {"num_waiting": planned["num_waiting"], "waiting": waiting}
    page = shown("scheduler", KeptSource(found), step=str(number))
    assert not page.exception
    assert f"**Step {number} in words**" in texts(page)
    assert {metric.label: metric.value for metric in page.metric} == {
        "Tokens": f"{sum(planned['num_scheduled_tokens'])} / 512",
        "Took": f"{(answered['updated_at'] - planned['schedule_begun_at']) / 1e6:.1f} ms",
        "Running": str(planned["num_running"]),
        "Blocks active": str(planned["num_active_blocks"]),
        "Cached": str(planned["num_cached_blocks"]),
        "Free": str(planned["num_free_blocks"]),
    }
    assert table(page, 0)["request"] == ["b-0"]
    batch = table(page, 1)
    assert batch["request"] == planned["request_ids"]
    assert batch["scheduled"] == planned["num_scheduled_tokens"]
    assert batch["before"] == planned["num_computed_tokens"]
    assert batch["new"] == answered["num_new_tokens"]
    ranks = table(page, 2)
    assert ranks["rank"] == sorted(worker["rank"] for worker in step["workers"])
    assert set(ranks["ran"]) <= {"eagerly: no GPU", ""}


def test_how_a_rank_ran_its_part_is_said_in_words() -> None:
    assert set(EXECUTION_WORDS) == set(EXECUTIONS) - {"graph"}
    assert execution_words({"graph_size": 8, "num_padded_tokens": 3}) == "CUDA graph of 8 rows, 3 empty"
    assert execution_words({"graph_size": 1, "num_padded_tokens": 0}) == "CUDA graph of 1 row"
    assert execution_words({"graph_size": 0, "eager_reason": "batch_size"}).endswith("than the largest graph")
    assert execution_words({"graph_size": 0, "eager_reason": "a_new_one"}) == "eagerly: a new one"
    assert execution_words({}) == ""


def test_buttons_lead_to_the_kept_steps_beside() -> None:
    found = answers()
    steps = found["/inspect/steps"]["steps"]["step"]
    page = shown("scheduler", KeptSource(found), step=str(steps[-3]))
    page.button("step-after").click().run()
    assert page.query_params["step"] == str(steps[-2])
    page.button("step-before").click().run()
    assert page.query_params["step"] == str(steps[-3])
    newest = shown("scheduler", KeptSource(found), step=str(steps[-1]))
    assert newest.button("step-after").disabled


def test_a_step_that_is_not_kept_is_said_to_be_gone() -> None:
    page = shown("scheduler", KeptSource(answers()), step="1")
    assert not page.exception
    assert "too old to be kept" in texts(page)


@pytest.mark.parametrize(
    ("picked", "address"),
    [
        ({"step": 7}, {"step": "7", "request": "old"}),
        ({"step": 7.0, "request": "a-0"}, {"step": "7", "request": "a-0"}),
        ({"step": None, "request": None}, {}),
        ({"step": "x"}, {"request": "old"}),
        (None, {"request": "old", "step": "3"}),
    ],
)
def test_what_is_picked_on_the_canvas_is_in_the_address(picked: Any, address: dict[str, str]) -> None:
    page = AppTest.from_string(
        "import streamlit as st\n"
        "from vllm_obs.dashboard.pages.scheduler import KEY, _picked\n"
        f"st.session_state[KEY] = {{'pick': {picked!r}}}\n_picked()\n"
    )
    page.query_params["step"], page.query_params["request"] = "3", "old"
    page.run()
    assert not page.exception
    assert dict(page.query_params) == address


def test_a_chosen_row_is_the_request_that_was_shown_in_it() -> None:
    shown_before = ["a", "b"]
    assert [chosen_name(rows, shown_before) for rows in ([], [1], [2])] == ["", "b", ""]


def test_a_chosen_row_is_followed_in_the_next_run() -> None:
    page = shown("scheduler", KeptSource(answers()), request="old")
    page.session_state[CHOSEN] = "a-0"
    page.run()
    assert page.query_params["request"] == "a-0"
    page.query_params["request"] = "b-0"
    assert page.run().query_params["request"] == "b-0"


def test_every_reason_and_limit_has_words() -> None:
    assert set(REASON_WORDS) == set(WAIT_REASONS)
    assert set(LIMIT_WORDS) == set(BINDING_LIMITS)
    assert set(HELP) <= set(REASON_WORDS)


def test_a_sentence_for_the_head_of_the_line() -> None:
    assert head_sentence(NOBODY) == "Nobody waits in the scheduler's line."
    assert head_sentence({"num_waiting": 1, "head_reason": "new_word"}) == (
        "One request waits. The head of the line waits because **new word** (`new_word`)."
    )


def test_a_step_in_words_tells_of_everything_unusual() -> None:
    planned = {
        "request_ids": ["a", "b"], "num_scheduled_tokens": [10, 1], "admitted_cached_tokens": [16],
        "admitted_ids": ["a"], "resumed_ids": [], "preempted_ids": ["c"], "left_out_ids": ["d"],
        "left_out_reasons": ["token_budget"], "num_running": 3, "num_waiting": 2, "head_reason": "kv_blocks",
        "schedule_begun_at": 1_000_000,
    }  # fmt: skip
    answered = {"updated_at": 21_000_000, "num_new_tokens": [1, 1], "num_wasted_rows": 1}
    step = {"planned": planned, "answered": answered, "failed": None, "floor_seconds": 0.01,
            "binding_limit": "preemption"}  # fmt: skip
    assert step_sentences(step, 512) == [
        "It ran **2 requests** with **11 tokens** of a budget of 512; 16 tokens more came from the prefix cache.",
        "1 request came in from the line.",
        ":red[1 request had to give up KV blocks] and wait again.",
        "1 running request sat it out: the step's token budget is spent.",
        "3 requests ran and 2 waited: there are not enough free KV blocks.",
        "Its limit: KV blocks: a running request had to give its own back.",
        "It took **20.0 ms**; as much work was seen to take 10.0 ms at best.",
        "It gave 2 new tokens; 1 row was computed in vain, for a request that had ended.",
    ]
    failed = {**step, "answered": None, "failed": {"error": "boom"}}
    assert step_sentences(failed, 0)[-1] == "It **failed**: `boom`."
