"""The processes page: the tree with who is not well, edges, stacks on request, the start, memory, and losses."""

from typing import Any

import pytest
from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Element

from vllm_obs.dashboard.figures import seconds, size
from vllm_obs.dashboard.memory_panel import parts_of, room_words
from vllm_obs.dashboard.process_edges import NO_EDGES, output_words, plan_words, rank_words, request_words
from vllm_obs.dashboard.process_facts import condition, engine_of, how_ended, name_of, rank_of, tree_of
from vllm_obs.dashboard.process_stacks import stack_text
from vllm_obs.dashboard.process_tree import alarm, ended_html, tree_html
from vllm_obs.dashboard.source import Reading
from vllm_obs.dashboard.startup_picture import kind_of_phase, picture

S = 1_000_000_000
Row = dict[str, Any]

NOTHING_SEEN = {"num": 0, "p50_seconds": None, "p99_seconds": None}
EDGES = {
    "window_seconds": 10,
    "untaken": {"num": 7, "oldest_seconds": 3.2},
    "engines": [
        {
            "engine": "0",
            "num_steps_in_flight": 1,
            "requests": {"num": 9, "p50_seconds": 0.02, "p99_seconds": 0.1},
            "requests_behind_a_step": {"num": 9, "p50_seconds": 0.015, "p99_seconds": 0.1},
            "ranks": [
                {
                    "rank": rank,
                    "plans": {"num": 5, "p50_seconds": 0.001 * (rank + 1), "p99_seconds": 0.05},
                    "answers": NOTHING_SEEN,
                }
                for rank in (0, 1)
            ],
            "outputs": [
                {
                    "client_index": 0,
                    "taken": {"num": 5, "p50_seconds": 0.0005, "p99_seconds": 0.002},
                    "made": {"num": 5, "p50_seconds": 0.0001, "p99_seconds": 0.001},
                }
            ],
        }
    ],
    "servers": [{"client_index": 0, "num_queued_deltas": 4}],
}


def process(role: str, pid: int, **fields: Any) -> Row:
    row = {
        "role": role,
        "pid": pid,
        "title": f"vllm-obs::{role}",
        "state": "ready",
        "started_at": pid * S,
        "exited_at": None,
        "exit_code": None,
        "activity": "executing",
        "activity_seconds": 0.01,
        "heartbeat_age_seconds": 0.01,
        "step": 7,
        "kernel_state": "sleeping",
        "uptime_seconds": 60.0,
        "num_starts": 1,
        "cpu_share": 0.5,
        "rss_bytes": 1 << 30,
        "num_threads": 4,
        "num_fds": 24,
    }
    return {**row, **fields}


RUN = [
    process("APIServer_0", 1),
    process("EngineCore_DP0", 2),
    *(process(f"Worker_TP{rank}", 10 + rank) for rank in range(10)),
    process("Observer", 3),
]


def html(page: AppTest) -> str:
    return "\n".join(str(element.value) for element in page.get("html") if isinstance(element, Element))


def test_processes_stand_in_their_places() -> None:
    tree = tree_of([*RUN, process("EngineCore_DP1", 4), process("Worker_DP1_TP0", 5)])
    assert [row["role"] for row in tree.servers] == ["APIServer_0"]
    assert [(core["pid"], [row["pid"] for row in workers]) for core, workers in tree.engines if core] == [
        (2, list(range(10, 20))),
        (4, [5]),
    ], "ranks are in the order of their numbers"
    assert [row["role"] for row in tree.beside] == ["Observer"]
    assert tree.ended == []


def test_roles_are_read() -> None:
    assert [name_of(role) for role in ("APIServer_0", "Worker_TP1", "Observer")] == [
        "API server 0",
        "Worker TP1",
        "Observer",
    ]
    assert (engine_of("Worker_DP3_TP1"), engine_of("Worker_TP1"), rank_of("Worker_TP11")) == ("3", "0", 11)


@pytest.mark.parametrize(
    ("fields", "stalls", "expected"),
    [
        ({}, [], ("good", "")),
        ({"heartbeat_age_seconds": 5.0}, [], ("warning", "no heartbeat for 5.00 s")),
        ({"heartbeat_age_seconds": 20.0}, [], ("bad", "no heartbeat for 20.0 s")),
        ({"heartbeat_age_seconds": 20.0, "activity": "waiting"}, [], ("good", "")),
        ({"kernel_state": "stopped"}, [], ("bad", "stopped by a signal, executing for 10.0 ms")),
        (
            {},
            [{"pid": 10, "role": "Worker_TP0", "process_state": "S"}],
            ("bad", "stands still, executing for 10.0 ms"),
        ),
        (
            {"heartbeat_age_seconds": 20.0},
            [{"pid": 11, "role": "Worker_TP1", "process_state": "T"}],
            ("warning", "held up by Worker TP1 for 20.0 s"),
        ),
        ({"state": "starting"}, [], ("unknown", "not ready yet")),
        ({"state": "exited", "exit_code": -9}, [], ("bad", "ended by SIGKILL")),
        ({"state": "exited", "exit_code": 0}, [], ("unknown", "ended in order")),
        ({"state": "gone"}, [], ("bad", "killed: nobody saw how")),
    ],
)
def test_condition_names_what_is_wrong(fields: Row, stalls: list[Row], expected: tuple[str, str]) -> None:
    assert condition(process("Worker_TP0", 10, **fields), stalls) == expected


def test_endings_are_told() -> None:
    codes = {0: "ended in order", 3: "ended with exit code 3", -15: "ended by SIGTERM", -99: "ended by signal 99"}
    assert {code: how_ended(process("Worker_TP0", 1, exit_code=code)) for code in codes} == codes


def test_dead_process_is_red_in_its_place_and_listed_below() -> None:
    rows = [
        process("EngineCore_DP0", 2, state="exited", exit_code=-9, exited_at=9 * S, uptime_seconds=7.0),
        process("EngineCore_DP0", 8, num_starts=2),
        process("Worker_TP0", 9, state="gone"),
    ]
    tree = tree_of(rows)
    assert alarm(tree, []) == (
        "1 of 2 processes is not well.",
        ["Worker TP0 (pid 9): killed: nobody saw how."],
    )
    below = ended_html(tree)
    assert "<td>Engine core DP0</td><td>pid 2</td><td>ended by SIGKILL</td><td>after 7.00 s</td>" in below
    drawn = tree_html(tree, [], NO_EDGES, 4 << 30)
    assert drawn.count('data-level="bad"') == 1
    assert "Engine core DP0, pid 8: executing" in drawn


def test_what_processes_call_themselves_is_never_markup() -> None:
    drawn = tree_html(tree_of([process("Observer", 1, title='<img src=x onerror="a">')]), [], NO_EDGES, None)
    assert "<img" not in drawn


def test_edges_are_told_in_words() -> None:
    assert request_words(EDGES, "0") == (
        "7 requests not taken yet, the oldest sent 3.20 s ago · on the way for 20.0 ms (p99 100 ms), "
        "15.0 ms of it until a step was over",
        True,
    )
    assert output_words(EDGES, "0") == (
        "taken after 500 µs (p99 2.00 ms), made into text in 100 µs (p99 1.00 ms), 4 deltas queued for clients"
    )
    assert plan_words(EDGES, "0") == (
        "1 step under way · plans reach the ranks after 2.00 ms (p99 50.0 ms) (rank 1, the last of 2)"
    )
    assert rank_words(EDGES, "0", 0) == ("plans 1.00 ms (p99 50.0 ms)", "answers –")
    assert request_words(NO_EDGES, "0") == ("none waits to be taken · none taken in the last 10 s", False)


def test_page_names_the_stopped_rank_and_its_figures() -> None:
    answers = answers_of("stalled")
    answers["/inspect/edges"] = EDGES
    page = shown("processes", KeptSource(answers))
    read = texts(page).replace("\\", "")
    rank = next(row for row in answers["/inspect/processes"]["processes"] if row["role"] == "Worker_TP1")
    culprit = f"Worker TP1 (pid {rank['pid']}): stopped by a signal, executing"
    assert f"**1 of 5 processes is not well.** :red[{culprit}" in read
    drawn = html(page)
    assert drawn.count('data-level="bad"') == 1
    assert drawn.count("Held up by Worker TP1") == 2
    assert size(rank["rss_bytes"]) in drawn, "what the rank has resident"
    assert "7 requests not taken yet" in drawn


def test_main_thread_is_first_and_text_without_threads_is_shown_as_it_is() -> None:
    threads = [
        {"thread": "0x2", "name": "", "frames": ["File b"]},
        {"thread": "0x1", "name": "MainThread", "frames": ["File a", "File c"]},
    ]
    assert stack_text({"threads": threads, "text": ""}) == "MainThread\n  File a\n  File c\n\nthread 0x2\n  File b"
    assert stack_text({"threads": [], "text": "as it is"}) == "as it is"


def test_stacks_are_taken_once_when_asked_and_stay() -> None:
    source = KeptSource(answers_of("saturated"))
    thread = {"thread": "0x1", "name": "MainThread", "frames": ["File a.py, line 1 in run"]}
    source.post_answer = Reading(
        {"processes": [{"title": "Worker_TP0", "pid": 5, "how": "in-process", "text": "", "says": "",
                        "threads": [thread]}]},
        0.0,
    )  # fmt: skip
    page = shown("processes", source)
    assert source.posted == []
    take = next(button for button in page.button if button.label == "Take stacks")
    take.click().run()
    assert source.posted == [("/inspect/stacks", {})]
    page.run()
    assert len(source.posted) == 1
    assert [code.value for code in page.code] == ["MainThread\n  File a.py, line 1 in run"]
    pid = source.answers["/inspect/processes"]["processes"][1]["pid"]
    page.selectbox(key="stacks-pid").set_value(pid)
    take = next(button for button in page.button if button.label == "Take stacks")
    take.click().run()
    assert source.posted[1] == (f"/inspect/processes/{pid}/stacks", {})


def test_stacks_that_are_refused_say_why_and_a_recording_has_none() -> None:
    source = KeptSource(answers_of("saturated"))
    source.post_answer = Reading(None, 0.0, "the stacks have not come within 15 s", 504)
    page = shown("processes", source)
    next(button for button in page.button if button.label == "Take stacks").click().run()
    assert "the stacks have not come within 15 s" in texts(page).replace("\\", "")
    recorded = shown("processes", KeptSource(answers_of("saturated"), is_live=False))
    assert all(button.disabled for button in recorded.button if button.label == "Take stacks")


def test_start_is_drawn_with_its_path_gaps_and_sentence() -> None:
    answers = answers_of("idle")
    view = answers["/inspect/startup"]
    read = texts(shown("processes", KeptSource(answers))).replace("\\", "")
    assert view["says"] in read
    drawn = picture(view)
    path = view["run"]["critical_path"]
    assert drawn.count('class="path"') == len(path)
    gaps = [gap for each in view["processes"] for gap in each["gaps"] if gap["seconds"] >= 0.001]
    assert drawn.count('class="gap"') == len(gaps)
    phases = [phase for each in view["processes"] for phase in each["phases"]]
    longest = max(phases, key=lambda phase: float(phase["seconds"]))
    assert f"{longest['phase']}: {seconds(longest['seconds'])}" in drawn
    assert [kind_of_phase(phase) for phase in ("wait for engine", "import torch", "load weights", "open")] == [
        "wait",
        "import",
        "load",
        "load",
    ]


def test_process_started_later_has_an_axis_of_its_own() -> None:
    view = answers_of("idle")["/inspect/startup"]
    again = {**view["processes"][1], "is_later": True, "pid": 77}
    drawn = picture({**view, "processes": [*view["processes"], again]})
    assert "Engine core DP0 was started later" in drawn
    assert drawn.count('class="axis"') == 2


def test_memory_sums_to_what_is_resident_and_says_what_room_is_left() -> None:
    view = answers_of("idle")["/inspect/memory"]
    for row in view["processes"]:
        assert sum(num_bytes for _, num_bytes in parts_of(row)) == row["resident_bytes"]
    assert parts_of(view["processes"][1])[0][0] == "weights"
    machine = view["limits"] | {"headroom_bytes": 20 << 30, "host_bytes": 24 << 30}
    assert room_words({"limits": machine}) == "20.0 GiB can still be taken: the machine has 24.0 GiB."
    assert room_words({"limits": {}}) == ""


def test_losses_and_broken_laws_come_first() -> None:
    answers = answers_of("saturated")
    answers["/inspect/state"]["telemetry"] |= {"num_lost_records": 5, "lost_by_role": {"Worker_TP1": 5}}
    worker = next(row for row in answers["/inspect/processes"]["processes"] if row["role"] == "Worker_TP1")
    worker["num_dropped_records"] = 2  # two of the five were never written
    law = answers["/inspect/invariants"]["laws"][3]
    law |= {"num_broken": 2, "subject": "a-0", "evidence": "3 tokens, and 4 answered"}
    page = shown("processes", KeptSource(answers))
    read = texts(page)
    assert "5 records lost" in read
    assert "Records lost 5" in read
    assert "**Flight recorders** · 5 records lost" in read
    assert ":red[broken: output tokens]" in read
    laws = next(each.value for each in page.dataframe if "Law" in each.value)
    assert list(laws.iloc[0]) == [2, law["says"], "a-0: 3 tokens, and 4 answered"]
    rings = next(each.value for each in page.dataframe if "Lost" in each.value)
    assert dict(zip(rings["Process"], rings["Lost"], strict=True))["Worker TP1"] == 5


def test_held_at_a_step_it_says_that_it_shows_the_present() -> None:
    answers = answers_of("saturated")
    held = texts(shown("processes", KeptSource(answers), step="12"))
    assert "The page is held at step 12. What stands here is not of that step: it is as it was at" in held
    assert "held at step" not in texts(shown("processes", KeptSource(answers)))
