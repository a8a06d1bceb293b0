"""Lists of requests combine their filters and page through everything once; the number ahead is what it was."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_request_list import RequestFilter, request_list
from vllm_obs.telemetry.inspect_requests import ahead_of, one_request
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.ring_tail import RingTail

ALL = RequestFilter(None, 0.0, False, 1000, None)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path, clock=lambda: run.now)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def listed(observer: Observer, wanted: RequestFilter = ALL) -> dict[str, Any]:
    while not observer.drain_slice():
        pass
    return request_list(observer.state, observer.now(), wanted)


def ids(found: dict[str, Any]) -> list[str]:
    return [row["http_id"] for row in found["requests"]]


def mixed(run: ScriptedRun) -> None:
    """quick and slow ended, failed and aborted ended early, one runs, two wait."""
    run.serve("quick", num_output=1)
    run.serve("slow", num_output=30)
    run.submit("failed")
    run.finish("failed", "error", "internal_error", 500)
    run.submit("aborted")
    run.step("aborted")
    run.finish("aborted", "abort", status=499)
    run.submit("runs")
    run.step("runs")
    run.submit("waits-1")
    run.submit("waits-2")
    run.step("runs", head_reason="max_num_seqs")
    run.refuse("refused")


def test_filters_by_state(run: ScriptedRun, observer: Observer) -> None:
    mixed(run)
    assert ids(listed(observer)) == ["waits-2", "waits-1", "runs", "aborted", "failed", "slow", "quick"]
    assert ids(listed(observer, ALL._replace(state="live"))) == ["waits-2", "waits-1", "runs"]
    assert ids(listed(observer, ALL._replace(state="waiting"))) == ["waits-2", "waits-1"]
    assert ids(listed(observer, ALL._replace(state="running"))) == ["runs"]
    assert ids(listed(observer, ALL._replace(state="ended"))) == ["aborted", "failed", "slow", "quick"]
    assert ids(listed(observer, ALL._replace(state="preempted"))) == []


def test_filters_combine(run: ScriptedRun, observer: Observer) -> None:
    mixed(run)
    failed = listed(observer, ALL._replace(failed_only=True))
    assert ids(failed) == ["aborted", "failed"]
    assert [ended["http_id"] for ended in failed["refused"]] == ["refused", "aborted", "failed"]
    assert ids(listed(observer, ALL._replace(min_seconds=0.3))) == ["slow"]
    assert ids(listed(observer, ALL._replace(min_seconds=0.3, failed_only=True))) == []


def test_text_is_found_in_ids_and_labels(run: ScriptedRun, observer: Observer) -> None:
    mixed(run)
    run.serve("labelled", label="Nightly-Batch-7", num_output=1)
    assert ids(listed(observer, ALL._replace(text="nightly"))) == ["labelled"]
    assert ids(listed(observer, ALL._replace(text="waits-2-0"))) == ["waits-2"]
    assert ids(listed(observer, ALL._replace(text="wait", state="running"))) == []
    found = listed(observer, ALL._replace(text="REFUSED"))
    assert ([ended["http_id"] for ended in found["refused"]], found["num_refused"]) == (["refused"], 1)


def test_a_page_says_of_how_many_it_is(run: ScriptedRun, observer: Observer) -> None:
    for number in range(25):
        run.serve(f"r{number}", num_output=1)
        run.refuse(f"no{number}")
    first = listed(observer, ALL._replace(limit=10))
    counts = [(first["num_before"], first["num_found"], first["num_refused"], len(first["refused"]))]
    last = listed(observer, ALL._replace(limit=20, cursor=first["cursor"], min_seconds=0.001))
    counts.append((last["num_before"], last["num_found"], last["num_refused"], len(last["refused"])))
    assert counts == [(0, 25, 25, 10), (10, 25, 0, 0)]
    assert (ids(last)[0], last["cursor"], last["min_seconds"]) == ("r14", None, 0.001)


def test_a_row_says_how_long_its_stage_and_its_first_token_took(run: ScriptedRun, observer: Observer) -> None:
    mixed(run)
    rows = {row["http_id"]: row for row in listed(observer)["requests"]}
    one = one_request(observer.state, observer.now(), "quick")
    sequence = one["sequences"][0]
    to_first = sequence["first_token_at"] - sequence["received_at"]
    assert rows["quick"]["ttft_seconds"] == sequence["ttft_seconds"] == to_first / 1e9 > 0
    assert (rows["waits-1"]["ttft_seconds"], rows["quick"]["in_stage_seconds"]) == (None, None)
    waits = one_request(observer.state, observer.now(), "waits-1")["sequences"][0]
    assert waits["in_stage_seconds"] == pytest.approx(waits["stage_ns"]["queue"] / 1e9)
    assert [ended["http_id"] for ended in one["http"]] == ["quick"], "its sequence is found by another name, too"
    assert one_request(observer.state, observer.now(), "quick-0-0")["http"] == one["http"]


def test_what_was_refused_is_on_the_first_page(run: ScriptedRun, observer: Observer) -> None:
    run.serve("done", num_output=1)
    run.refuse("stalled", 503, "stalled")
    for wanted, ids_refused in (
        (ALL, ["stalled"]),
        (ALL._replace(state="ended"), ["stalled"]),
        (ALL._replace(state="live"), []),
        (ALL._replace(account="none"), []),
        (ALL._replace(cursor="1:x"), []),
    ):
        assert [ended["http_id"] for ended in listed(observer, wanted)["refused"]] == ids_refused
    (known,) = one_request(observer.state, observer.now(), "chatcmpl-stalled")["http"]
    assert (known["http_id"], known["reason"]) == ("stalled", "stalled")


def test_a_row_says_where_its_sequence_is(run: ScriptedRun, observer: Observer) -> None:
    mixed(run)
    rows = {row["http_id"]: row for row in listed(observer)["requests"]}
    assert (rows["waits-2"]["stage"], rows["waits-2"]["reason"]) == ("queue", "max_num_seqs")
    assert (rows["waits-1"]["stage"], rows["waits-1"]["reason"]) == ("queue", "max_num_seqs")
    assert (rows["runs"]["stage"], rows["runs"]["num_output_tokens"]) == ("decode", 2)
    assert (rows["slow"]["stage"], rows["slow"]["finish_reason"], rows["slow"]["status"]) == ("", "length", 200)
    assert rows["failed"]["error"] == "internal_error"


def test_pages_hold_every_request_once(run: ScriptedRun, observer: Observer) -> None:
    for number in range(53):
        run.serve(f"r{number}", num_output=1)
    seen: list[str] = []
    cursor: str | None = None
    for _ in itertools.count():
        page = listed(observer, ALL._replace(limit=10, cursor=cursor))
        seen += ids(page)
        cursor = page["cursor"]
        run.serve("meanwhile", num_output=1)
        if cursor is None:
            break
    assert seen == [f"r{number}" for number in reversed(range(53))]


@pytest.mark.parametrize("cursor", ["", "x", "1", "x:y", "-1:y"])
def test_what_is_no_cursor_is_refused(observer: Observer, cursor: str) -> None:
    with pytest.raises(InspectError, match="cursor"):
        listed(observer, ALL._replace(cursor=cursor))


def test_those_ahead_are_those_that_were_there_when_it_came(run: ScriptedRun, observer: Observer) -> None:
    run.serve("gone before")
    for name in ("runs-1", "runs-2", "waits-1"):
        run.submit(name)
    run.step("runs-1", "runs-2", head_reason="max_num_seqs")
    run.submit("it")
    run.submit("came later")
    run.step("runs-1", "runs-2", head_reason="max_num_seqs")
    run.finish("runs-1")
    listed(observer)
    assert ahead_of(observer.state, observer.state.sequences["it-0-0"]) == (2, 1)
    for name in ("waits-1", "it", "came later"):
        run.step(name)
        run.finish(name)
    listed(observer)
    (ledger,) = observer.state.find("it")
    assert ledger.is_closed
    assert ahead_of(observer.state, ledger) == (2, 1)


def test_an_unknown_name_is_not_found(observer: Observer) -> None:
    listed(observer)
    with pytest.raises(InspectError) as caught:
        one_request(observer.state, observer.now(), "x" * 5000)
    assert caught.value.status == 404
    assert len(str(caught.value)) < 200


def test_a_label_that_very_many_carry_lists_the_newest(run: ScriptedRun, observer: Observer) -> None:
    for number in range(100):
        run.serve(f"r{number}", num_output=1, label="same")
    listed(observer)
    found = one_request(observer.state, observer.now(), "same")
    assert (found["num_requests"], found["num_sequences"], found["num_left_out"]) == (100, 100, 84)
    assert found["sequences"][0]["http_id"] == "r99"


def test_those_that_shared_its_steps_are_its_companions(run: ScriptedRun, observer: Observer) -> None:
    for name in ("a", "b", "c"):
        run.submit(name)
    run.step("a", "b")
    run.step("a", "b", "c")
    run.step("a")
    listed(observer)
    (sequence,) = one_request(observer.state, observer.now(), "a")["sequences"]
    assert sequence["companions"] == {"b-0-0": 2, "c-0-0": 1}
