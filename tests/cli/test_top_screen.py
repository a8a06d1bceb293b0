"""The screen of `vllm-obs top` fits its terminal, shows requests when it matters, and says what it lacks."""

from typing import Any

import pytest

from vllm_obs.cli.top_cells import RED, YELLOW, plain
from vllm_obs.cli.top_screen import Frame, Look, screen
from vllm_obs.cli.top_tables import longest_first

URL = "http://127.0.0.1:9000"
MS = 10**6
LOOP = {"schedule": 0.011, "execute": 0.8, "sample": 0.152, "update": 0.021, "busy": 0.984, "idle": 0.016}
RATES = {
    f"{name}_per_second": 12.5
    for name in ("output_tokens", "prompt_tokens", "requests", "failed_requests", "steps", "http_requests")
}


def request(number: int, state: str = "running", label: str = "", **values: Any) -> dict[str, Any]:
    """The higher the number, the younger."""
    stage, reason = ("queue", "max_num_seqs") if state == "waiting" else ("decode", "")
    return {
        "request_id": f"{number:032x}-0",
        "external_id": label,
        "sequence_index": 0,
        "num_sequences": 1,
        "state": state,
        "stage": stage,
        "reason": reason,
        "latency_ns": (1000 - number) * MS,
        "num_prompt_tokens": 4711,
        "num_output_tokens": 815,
        "last_token_age_seconds": 0.3,
        **values,
    }


def process(role: str, state: str = "ready") -> dict[str, Any]:
    return {
        "role": role,
        "pid": 4242,
        "state": state,
        "activity": "executing",
        "heartbeat_age_seconds": 0.1,
        "cpu_seconds": 1.0,
        "rss_bytes": 10**8,
    }


def look_of(requests: list[dict[str, Any]], num_observed: int = 9, **state: Any) -> Look:
    num_waiting = sum(row["state"] == "waiting" for row in requests)
    engine = {
        "engine": "0",
        "state": "awake",
        "num_running": len(requests) - num_waiting,
        "num_waiting": num_waiting,
        "last_step": 12345,
        "last_step_age_seconds": 0.1,
        "last_plan": {
            "num_running": 4,
            "num_waiting": 1,
            "num_active_blocks": 34,
            "num_cached_blocks": 6,
            "num_free_blocks": 216,
        },
        "blocks": {"usage": 0.5, "num_active": 2560, "num_cached": 560, "num_free": 2000, "num_blocks": 5120},
        "loop": {"10s": LOOP},
    }
    whole = {
        "health": {"word": "ok", "says": "All is well."},
        "deaths": [],
        "models": ["tiny"],
        "uptime_seconds": 5.0,
        "telemetry": {"num_lost_records": 0, "detail_level": 3, "sample_rate": 1.0, "exports": {}},
        "engines": [engine],
        "throughput": dict.fromkeys(("10s", "1m", "5m"), RATES),
        "waiting": {"by_reason": {"max_num_seqs": num_waiting} if num_waiting else {}},
        "requests": {"num_live": len(requests)},
    }
    value = 0.1 if num_observed else 0.0
    summary = {"num_observed": num_observed, "p50": value, "p95": value, "p99": value, "max": 4 * value}
    names = ("ttft", "itl", "e2e", "queue_so_far", "step")
    processes = [process("APIServer_0"), process("EngineCore_DP0"), process("Observer")]
    return Look(whole | state, requests, {"quantiles": dict.fromkeys(names, summary)}, processes)


def shown(look: Look, columns: int = 80, rows: int | None = 23, **values: Any) -> list[str]:
    return [plain(line) for line in screen(look, Frame(URL, columns, rows, **values))]


@pytest.mark.parametrize("num_waiting", [0, 90])
@pytest.mark.parametrize("size", [(80, 23), (100, 30), (160, 49), (60, 16)])
def test_it_fits_and_shows_requests_and_processes(size: tuple[int, int], num_waiting: int) -> None:
    columns, rows = size
    requests = [request(number) for number in range(10)]
    requests += [request(number, "waiting") for number in range(10, 10 + num_waiting)]
    lines = shown(look_of(requests), columns, rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    rows_shown = [line for line in lines if " decode " in line or " queue: max_num_seqs" in line]
    assert len(rows_shown) >= 8
    more = 10 + num_waiting - len(rows_shown)
    assert (f"and {more} more" in text) == (more > 0)
    assert all(role in text for role in ("APIServer_0", "EngineCore_DP0", "Observer") if columns >= 80)


def test_a_narrow_screen_cuts_no_column() -> None:
    """What is last in the widest lines is there: the loop's update, the last token's age."""
    lines = shown(look_of([request(1)]))
    assert "  loop ██████████  98.4 %  schedule 1.1, execute 80.0, sample 15.2, update 2.1" in lines
    (row,) = (line for line in lines if " decode " in line)
    assert row.split()[1:] == ["decode", "1.0", "s", "4711", "815", "0.3", "s"]


def test_the_clients_label_is_shown_at_every_width() -> None:
    look = look_of([request(1, label="mine"), request(2, label="twins", num_sequences=2, sequence_index=1)])
    for columns in (80, 110, 160):
        text = "\n".join(shown(look, columns))
        assert "mine " in text
        assert "twins #1 " in text
    assert f"{1:032x}-0" in "\n".join(shown(look, 160))


def test_those_that_run_and_those_that_wait_share_the_room() -> None:
    running = [request(number) for number in range(10)]
    waiting = [request(number, "waiting") for number in range(10, 100)]
    newest_first = [*reversed(running + waiting)]
    assert longest_first(newest_first, 8) == running[:4] + waiting[:4]
    assert longest_first(newest_first, 60) == running + waiting[:50]
    assert longest_first(running, 8) == running[:8]
    assert "and 92 more (86 waiting, 6 running)" in shown(look_of(newest_first))


def test_what_was_not_measured_is_no_zero() -> None:
    lines = shown(look_of([], num_observed=0))
    (row,) = (line for line in lines if line.startswith("TTFT"))
    assert row.split() == ["TTFT", "–", "–", "–", "–", "–"]
    (row,) = (line for line in shown(look_of([])) if line.startswith("TTFT"))
    assert row.split() == ["TTFT", "100.0", "ms", "100.0", "ms", "100.0", "ms", "400.0", "ms", "9"]


def test_nobody_answering_is_not_well() -> None:
    look = look_of([request(1)])
    lines = screen(look, Frame(URL, 80, 23, trouble="Below is how it was 5 s ago; it does not answer."))
    assert lines[1] == f"{RED}no answer\x1b[0m  Below is how it was 5 s ago; it does not answer."


def test_draining_is_told_in_another_colour() -> None:
    look = look_of([], health={"word": "draining", "says": "The server ends."})
    assert screen(look, Frame(URL, 80, 23))[1] == f"{YELLOW}draining\x1b[0m  The server ends."


def test_deaths_are_told_of_and_dead_engines_stay() -> None:
    died = {"role": "EngineCore_DP0", "pid": 7, "exit_code": -9, "died_at": 1, "says": "It died of SIGKILL."}
    look = look_of([], deaths=[died])
    assert "ok  All is well. It died of SIGKILL." in shown(look)
    look.state["engines"][0]["state"] = "dead"
    look.state["health"] = {"word": "recording", "says": "A recording. It died of SIGKILL."}
    lines = screen(look, Frame(URL, 80, 23))
    assert lines[1].startswith(f"{RED}recording")
    assert lines[2] == f"{RED}engine 0  0 running  0 waiting  step 12345  dead\x1b[0m"
    assert lines[3] == "  at its last step: 4 running, 1 waiting; blocks: 34 active, 6 cached, 216 free"


def test_an_engine_that_is_given_up_says_so() -> None:
    look = look_of([])
    look.state["engines"][0]["state"] = "given up"
    lines = screen(look, Frame(URL, 80, 23))
    assert f"{RED}engine 0  0 running  0 waiting  step 12345  given up\x1b[0m" in lines


def test_a_long_step_is_told_of_before_it_is_a_stall() -> None:
    look = look_of([request(1)])
    look.state["engines"][0]["last_step_age_seconds"] = 7.5
    assert "engine 0  1 running  0 waiting  step 12345  awake  no step has ended for 7.5 s" in shown(look)


def test_other_runs_that_live_are_named() -> None:
    assert "also alive: run b at http://127.0.0.1:9001 (--url)" in shown(
        look_of([]), others=("run b at http://127.0.0.1:9001",)
    )


VERDICT = {
    "word": "kv_pressure",
    "severity": "severe",
    "window_seconds": 10,
    "says": "Requests wait for KV blocks 75 % of the time: 300 of 500 blocks are held by 10.0 that run, 5.0 wait.",
    "findings": [{"name": "kv_pressure", "helps": ["raise it from 500 to about 630"], "helps_not": []}],
    "floor": {"p50": 1.25},
}


@pytest.mark.parametrize("size", [(80, 23), (160, 49), (60, 16)])
def test_the_verdict_is_the_second_line_of_every_screen(size: tuple[int, int]) -> None:
    columns, rows = size
    look = look_of([request(number) for number in range(10)])._replace(verdict=VERDICT)
    lines = shown(look, columns, rows)
    assert lines[1].startswith("In the last 10 s: Requests wait for KV blocks 75 %")
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert ("kv_pressure  helps:" in "\n".join(lines)) == (rows == 49)
