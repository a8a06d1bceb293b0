"""The profile page: phases of the last steps, orders for a profile, and the tables of those that were taken."""

import pytest
from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.profile_phases import phases_of
from vllm_obs.dashboard.source import Reading

MS = 1_000_000
COLUMNS = {
    "step": [7, 8, 9],
    "schedule_begun_at": [0, 100 * MS, 200 * MS],
    "schedule_ended_at": [1 * MS, 101 * MS, 201 * MS],
    "sampled_at": [20 * MS, 120 * MS, None],
    "updated_at": [22 * MS, 123 * MS, None],
    "ranks": [
        [[0, 2 * MS, 3 * MS, 15 * MS, 16 * MS, 18 * MS], [1, 2 * MS, 3 * MS, 16 * MS, 17 * MS, 19 * MS]],
        [],
        [],
    ],
}
TABLE = {
    "role": "Worker_TP0",
    "num_steps": 2,
    "first_step": 7,
    "last_step": 8,
    "median_step_seconds": 0.02,
    "max_step_seconds": 0.03,
    "accounted_share": 0.925,
    "forward_seconds": 0.04,
    "operators": [
        {"operator": "attention", "phase": "forward", "num_calls": 4, "self_seconds": 0.01, "total_seconds": 0.02,
         "share_of_steps": 0.25, "share_of_forward": 0.5},
    ],
}  # fmt: skip
PROFILE = {"profile": "p", "kind": "operators", "state": "written", "parts": [], "directory": "/d",
           "files": [{"name": "Worker_TP0.trace.json.gz", "num_bytes": 2048}], "operators": [TABLE],
           "samples": None, "sampling": None}  # fmt: skip


def test_phases_of_a_step_sum_to_its_time() -> None:
    steps, phases = phases_of(COLUMNS)
    assert steps == [7, 8]
    assert [sum(values[place] for values in phases.values()) for place in (0, 1)] == pytest.approx([22.0, 23.0])
    assert {name: values[0] for name, values in phases.items()} == pytest.approx(
        {"schedule": 1, "ipc": 2, "prepare": 1, "forward": 13, "sample": 2, "update": 2, "unknown": 1}
    )
    assert phases["unknown"][1] == pytest.approx(19.0), "of a step whose ranks have not told all is unknown"


def with_profile() -> KeptSource:
    answers = answers_of("saturated")
    answers["/inspect/profiles"] = {"profiles": [PROFILE]}
    answers["/inspect/profiles/p"] = PROFILE
    return KeptSource(answers)


def test_newest_profile_is_open_with_its_table_and_files() -> None:
    page = shown("profile", with_profile())
    assert not page.exception
    read = texts(page).replace("\\", "")
    assert "(/observer/inspect/profiles/p/Worker_TP0.trace.json.gz) 2.0 KiB" in read
    assert "92 %" in read
    table = next(element.value for element in page.dataframe if "Operator" in element.value)
    assert list(table["Operator"]) == ["attention"]
    assert list(table["Of forward"]) == [50.0]


def test_order_is_sent_once_and_opens_what_it_began() -> None:
    source = with_profile()
    source.post_answer = Reading({"profile": "p"}, 0.0)
    page = shown("profile", source)
    page.button[0].click().run()
    assert source.posted == [("/inspect/profile", {"kind": "operators", "seconds": 5.0, "steps": 200})]
    assert page.query_params["profile"] == "p"


def test_refused_order_is_told_in_words() -> None:
    source = with_profile()
    source.post_answer = Reading(None, 0.0, "a profile is under way already", 409)
    page = shown("profile", source)
    page.button[0].click().run()
    assert "a profile is under way already" in texts(page)


def test_recording_takes_no_orders() -> None:
    page = shown("profile", KeptSource(answers_of("saturated"), is_live=False))
    assert page.button[0].disabled
