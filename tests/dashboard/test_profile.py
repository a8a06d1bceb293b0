"""The profile page: phases of the last steps, orders for a profile, and the tables of those that were taken."""

from typing import Any

import pytest
from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard import profile_tables
from vllm_obs.dashboard.profile_phases import phases_of
from vllm_obs.dashboard.profile_utilisation import TEACH, rate
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


KERNELS = {
    "step_seconds": 0.05,
    "device_seconds": 0.04,
    "device_busy_seconds": 0.035,
    "kernels": [
        {"kernel": "nvjet_tst_128x64", "kind": "cuda", "num_calls": 60, "device_seconds": 0.03,
         "mean_seconds": 0.0005, "share_of_device": 0.75, "flops": 3 * 10**12, "flops_per_second": 1e14},
        {"kernel": "paged_attention_kernel", "kind": "triton", "num_calls": 30, "device_seconds": 0.01,
         "mean_seconds": 0.0003, "share_of_device": 0.25},
    ],
}  # fmt: skip


def test_kernels_of_a_device_have_a_table_of_their_own() -> None:
    source = with_profile()
    source.answers["/inspect/profiles/p"] = PROFILE | {"operators": [TABLE | KERNELS]}
    page = shown("profile", source)
    assert not page.exception
    table = next(element.value for element in page.dataframe if "Kernel" in element.value)
    assert list(table["Kernel"]) == ["nvjet_tst_128x64", "paged_attention_kernel"]
    assert (list(table["Device ms"]), list(table["Of kernels"])) == ([30.0, 10.0], [75.0, 25.0])
    assert table["TFLOP/s"][0] == 100.0
    assert "It was busy for 35.0 ms of the 50.0 ms of the steps" in texts(page)


def test_profile_without_a_device_has_no_table_of_kernels() -> None:
    page = shown("profile", with_profile())
    assert not any("Kernel" in element.value for element in page.dataframe)


def test_order_is_sent_once_and_opens_what_it_began() -> None:
    source = with_profile()
    source.post_answer = Reading({"profile": "p"}, 0.0)
    page = shown("profile", source)
    page.button[0].click().run()
    assert source.posted == [("/inspect/profile", {"kind": "operators", "seconds": 5.0, "steps": 200})]
    assert page.query_params["profile"] == "p"


class EndsMeanwhile(KeptSource):
    """A source whose profile is under way when it is asked for at first, and written from then on."""

    def get(self, path: str, **query: Any) -> Reading:
        reading = super().get(path, **query)
        if path == "/inspect/profiles/p":
            self.answers[path] = PROFILE
        return reading


def test_profile_under_way_opens_by_itself_when_it_is_written() -> None:
    source = EndsMeanwhile(with_profile().answers)
    source.answers["/inspect/profiles/p"] = PROFILE | {"state": "running", "files": [], "operators": None}
    page = shown("profile", source, profile="p")
    assert "p: written" in texts(page).replace("\\", "")
    assert any("Operator" in element.value for element in page.dataframe)


def test_refused_order_is_told_in_words() -> None:
    source = with_profile()
    source.post_answer = Reading(None, 0.0, "a profile is under way already", 409)
    page = shown("profile", source)
    page.button[0].click().run()
    assert "a profile is under way already" in texts(page)


def test_recording_takes_no_orders() -> None:
    page = shown("profile", KeptSource(answers_of("saturated"), is_live=False))
    assert page.button[0].disabled


RATES = {"seconds": 12.5, "flops_per_second": 2.5e10, "bytes_per_second": 6e9, "mfu": 0.25, "mbu": 0.6}
UTILISATION = {
    "engine": "0",
    "num_steps": 1234,
    "num_ranks": 2,
    "limits": {
        "flops_per_second": 1e11,
        "bytes_per_second": 1e10,
        "was_exceeded": {"flops": False, "bytes": True},
    },
    "worker": RATES,
    "wall": {**RATES, "mfu": 0.05, "mbu": 0.12, "flops_per_second": 5e9},
    "kinds": {"decode": {**RATES, "mbu": 0.625}, "prefill": {**RATES, "mfu": None, "flops_per_second": None}},
    "phases": {"prepare": 0.02, "forward": 0.9, "wait": 0.0, "sample": 0.08},
    "sentence": "Reading is what steps wait for.",
    "caveat": "Attention is left out.",
}
UNKNOWN = {**UTILISATION, "num_steps": 0, "limits": None, "kinds": {}, "worker": dict.fromkeys(RATES),
           "wall": dict.fromkeys(RATES)}  # fmt: skip


def utilisation_of(document: object, **query: str) -> tuple[list[str], str]:
    """The HTML of the two cards, and all that can be read."""
    kept = answers_of("saturated").items()
    answers = {path: answer for path, answer in kept if not path.startswith("/inspect/utilisation")}
    if document is not None:
        answers["/inspect/utilisation"] = document
    page = shown("profile", KeptSource(answers), **query)
    assert not page.exception
    cards = [element.proto.body for element in page.get("html") if "(M" in element.proto.body]
    return cards, texts(page).replace("\\", "")


def test_cards_show_what_is_reached_of_what_was_measured() -> None:
    (arithmetic, memory), read = utilisation_of(UTILISATION, window="10s")
    assert "<b>Arithmetic (MFU)</b> 25 %" in arithmetic
    assert arithmetic.count("width:25.000%") == 2, "the workers' time and decode steps"
    assert "width:5.000%" in arithmetic
    assert ">–<" in arithmetic, "of steps with a prompt nothing is known"
    for words in (
        "25.0 GFLOP/s",
        "5.00 GFLOP/s",
        "Limit 100 GFLOP/s: the best matrix products measured at the start",
    ):
        assert words in arithmetic
    assert "<b>Memory (MBU)</b> 60 %" in memory
    assert "width:62.500%" in memory
    assert "Limit 10.0 GB/s: of the best step, which did more than was measured at the start" in memory
    assert "How much of the machine is used, last 10s" in read
    assert "Reading is what steps wait for." in read
    assert (
        "1\u202f234 steps took on 2 ranks 12.5 s: prepare 2.0 %, forward 90 %, wait 0 %, sample 8.0 %. "
        "Attention is left out."
    ) in read


@pytest.mark.parametrize("document", [None, UNKNOWN])
def test_nothing_is_shown_as_zero_where_limits_are_not_known(document: object) -> None:
    cards, read = utilisation_of(document)
    assert len(cards) == 2
    assert all("</b> –" in card and "The limit is not known" in card and "0 %" not in card for card in cards)
    assert TEACH in read


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "–"), (0.0, "0 B/s"), (12.0, "12.0 B/s"), (9.87e10, "98.7 GB/s"), (1.25e12, "1.25 TB/s")],
)
def test_rates_have_three_digits(value: float | None, says: str) -> None:
    assert rate(value, "B/s") == says


@pytest.mark.parametrize("has_ran", [True, False])
def test_flame_graph_is_of_what_ran_where_that_is_known(monkeypatch: pytest.MonkeyPatch, has_ran: bool) -> None:
    drawn: list[tuple[str, ...]] = []
    monkeypatch.setattr(profile_tables, "flame_graph", lambda *paths: drawn.append(paths))
    role = {"role": "Worker", "num_ran": 3, "knows_who_ran": True, "num_samples": 9, "cpu_seconds": 0.03,
            "functions": []}  # fmt: skip
    names = ["merged.collapsed.txt", *(["merged.ran.collapsed.txt"] if has_ran else [])]
    profile = {**PROFILE, "kind": "samples", "operators": None, "samples": [role],
               "files": [{"name": name, "num_bytes": 9} for name in names]}  # fmt: skip
    answers = answers_of("saturated")
    answers["/inspect/profiles"], answers["/inspect/profiles/p"] = {"profiles": [profile]}, profile
    page = shown("profile", KeptSource(answers))
    assert not page.exception
    ran = "profiles/p/merged.ran.collapsed.txt" if has_ran else ""
    assert drawn == [("profiles/p/merged.collapsed.txt", ran)]
