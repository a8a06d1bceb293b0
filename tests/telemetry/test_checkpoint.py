"""A checkpoint is whole or not there, and who goes on from it ends where one ends that never stopped."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_run import random_runs
from recording_view import RecordingView

from vllm_obs.telemetry.checkpoint import Checkpoint, Resumed
from vllm_obs.telemetry.ring_reader import RingCursor
from vllm_obs.telemetry.run_snapshot import RunSnapshot
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.sequence_book import RELEASE_GRACE_NS
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

CURSORS = [RingCursor(2**62, 4096, 17), RingCursor(1, 0, 0)]


def restarted(state: RunState, tmp_path: Path) -> RunState:
    """Another Observer's state, gone on from this one's checkpoint."""
    other = RunState()
    assert Checkpoint(tmp_path / "checkpoint", {"run": state}).save([], 1)
    resumed = Checkpoint(tmp_path / "checkpoint", {"run": other}).load()
    assert resumed is not None
    assert (resumed.lost_parts, other.state()) == ([], state.state())
    return other


class Counter:
    def __init__(self, value: object = 0) -> None:
        self.value = value

    def state(self) -> object:
        return self.value

    def restore(self, state: Any) -> None:
        if not isinstance(state, int):
            raise TypeError("not a number")
        self.value = state


def test_what_was_saved_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert Checkpoint(path, {"a": Counter(7), "b": Counter(8)}).save(CURSORS, 55)
    a, c = Counter(), Counter()
    assert Checkpoint(path, {"a": a, "c": c}).load() == Resumed(55, CURSORS, lost_parts=["c"])
    assert (a.value, c.value) == (7, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_the_older_of_two_files_is_overwritten_whoever_saves(tmp_path: Path) -> None:
    path, words = tmp_path / "checkpoint", [Counter(1)]
    first = Checkpoint(path, {"a": words[0]})
    for now in (1, 2, 3):
        words[0].value = now
        assert first.save([], now)
    saved = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert set(saved) == {"checkpoint", "checkpoint.other"}
    second = Counter()
    resumed = Checkpoint(path, {"a": second})
    assert (resumed.load(), second.value) == (Resumed(3, [], []), 3)
    assert resumed.save([], 4)
    third = Counter()
    assert (Checkpoint(path, {"a": third}).load(), third.value) == (Resumed(4, [], []), 3)
    assert path.read_bytes() == saved["checkpoint"]


@pytest.mark.parametrize("num_bytes", [0, 1, 23, 24, 40, 60])
def test_whoever_is_killed_while_it_saves_leaves_what_it_saved_before(num_bytes: int, tmp_path: Path) -> None:
    path, counter = tmp_path / "checkpoint", Counter()
    checkpoint = Checkpoint(path, {"a": counter})
    written = []
    for now in (1, 2, 3):
        counter.value = 1000 * now
        assert checkpoint.save([RingCursor(now, 4096, 17)] * 5, now)
        written.append(path.read_bytes())
    before, after = written[0], written[2]
    path.write_bytes(after[:num_bytes] + before[num_bytes:])
    restored = Counter()
    assert (Checkpoint(path, {"a": restored}).load(), restored.value) == (
        Resumed(2, [RingCursor(2, 4096, 17)] * 5, []),
        2000,
    )


def test_what_a_longer_one_leaves_behind_a_shorter_one_is_not_read(tmp_path: Path) -> None:
    path, counter = tmp_path / "checkpoint", Counter("a" * 5000)
    checkpoint = Checkpoint(path, {"a": counter})
    for now, value in enumerate(["a" * 5000, "b" * 4000, 7, 8], 1):
        counter.value = value
        assert checkpoint.save([], now)
    restored = Counter()
    assert (Checkpoint(path, {"a": restored}).load(), restored.value) == (Resumed(4, [], []), 8)
    assert path.stat().st_size > 5000


def test_a_part_that_cannot_use_its_state_begins_anew(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", {"a": Counter("words"), "b": Counter(8)}).save([], 1)
    a, b = Counter(), Counter()
    assert Checkpoint(tmp_path / "checkpoint", {"a": a, "b": b}).load() == Resumed(1, [], lost_parts=["a"])
    assert (a.value, b.value) == (0, 8)


def test_a_part_that_cannot_be_saved_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(path, {"a": Counter(7)}).save(CURSORS, 55)
    failing = Checkpoint(path, {"a": Counter(object())})
    assert (failing.save([], 56), failing.save([], 57), failing.num_failures) == (False, False, 2)
    a = Counter()
    assert Checkpoint(path, {"a": a}).load() == Resumed(55, CURSORS, [])
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_queues_can_be_kept(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "checkpoint", {"a": Counter(deque([1, 2]))}).save([], 1)


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x94\x02\x00\x90\x80", b"\x94\x01\x00\x90"])
def test_a_file_that_is_no_checkpoint_is_not_used(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert Checkpoint(path, {"a": Counter()}).load() is None


def test_where_there_is_none_everything_begins_anew(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "checkpoint", {}).load() is None
    assert not Checkpoint(tmp_path / "gone" / "checkpoint", {}).save([], 1)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert Checkpoint(tmp_path / "link", {}).load() is None


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None, database=None
)
@given(stream=random_runs(), data=st.data())
def test_going_on_from_a_checkpoint_gives_the_same_ledgers(
    stream: FactStream, data: st.DataObject, tmp_path: Path
) -> None:
    facts = list(stream.facts)
    stop = data.draw(st.integers(0, len(facts)))
    whole, first, second = RunState(), RunState(), RunState()
    for fact in facts:
        whole.apply(*fact)
    for fact in facts[:stop]:
        first.apply(*fact)
    ended_before = {ledger.request_id: ledger for ledger in first.ended}
    Checkpoint(tmp_path / "checkpoint", {"run": first}).save([], 1)
    resumed = Checkpoint(tmp_path / "checkpoint", {"run": second}).load()
    assert resumed is not None
    assert (resumed.lost_parts, second.state()) == ([], first.state())
    for fact in facts[stop:]:
        second.apply(*fact)
    for state in (whole, second):
        # One that the core refused may end in this very moment: it is closed in the next.
        state.tick(stream.now + 1)
    ended_after = {ledger.request_id: ledger for ledger in second.ended}
    assert ended_before | ended_after == {ledger.request_id: ledger for ledger in whole.ended}
    assert second.invariants.num_broken == 0
    assert list(second.sequences) == []


def test_what_was_lost_between_checkpoint_and_going_on_is_marked(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    first, second = RunState(), RunState()
    for fact in stream.facts:
        first.apply(*fact)
    Checkpoint(tmp_path / "checkpoint", {"run": first}).save([], 1)
    Checkpoint(tmp_path / "checkpoint", {"run": second}).load()
    second.apply(ENGINE, RecordsLost(100))
    assert (second.sequences["r-0"].is_partial, second.num_lost) == (True, {"EngineCore_DP0": 100})
    for fact in (*stream.keyframes(), *stream.step(["r-0"]), *stream.finish("r-0")):
        second.apply(*fact)
    assert [ledger.is_partial for ledger in second.ended] == [True]
    assert (second.engines["0"].blocks.is_exact, second.invariants.num_broken) == (True, 0)


def test_a_release_that_was_lost_before_a_restart_is_found_missing_after_it(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("lost")
    stream.submit("lives")
    stream.step(["lost", "lives"])
    first = RunState()
    for fact in stream.facts:
        first.apply(*fact)
    stream.release("lost")
    first.apply(ENGINE, RecordsLost(2))
    second = restarted(first, tmp_path)
    assert not second.engines["0"].builder.roster.is_exact
    for fact in stream.step(["lives"]):
        second.apply(*fact)
    engine = second.engines["0"]
    assert (list(engine.builder.roster.ledgers), engine.builder.roster.is_exact) == (["lives"], True)
    assert (engine.num_running, engine.num_waiting, second.invariants.num_broken) == (1, 0, 0)


def test_a_step_whose_answer_may_be_lost_is_not_waited_for_after_a_restart(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("known")
    stream.step(["known"], is_answered=False)
    first = RunState()
    for fact in stream.facts:
        first.apply(*fact)
    first.apply(ENGINE, RecordsLost(1))
    second = restarted(first, tmp_path)
    for fact in stream.submit("late"):
        for state in (first, second):
            state.apply(*fact)
    assert comparable(second) == comparable(first)
    assert {each.reason for each in second.sequences["late"].intervals if each.stage == "submit"} == {""}


def test_an_ending_that_was_lost_before_a_restart_is_not_waited_for_forever(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("lost")
    stream.submit("known")
    stream.step(["lost", "known"])
    first = RunState()
    for fact in stream.facts:
        first.apply(*fact)
    first.apply(API_SERVER, RecordsLost(2))
    second = restarted(first, tmp_path)
    end_of_unknown = [(API_SERVER, record._replace(request_id="unknown")) for _, record in stream.end("known")]
    for fact in (*stream.release("lost"), *end_of_unknown):
        second.apply(*fact)
    second.tick(stream.now + RELEASE_GRACE_NS)
    assert list(second.sequences) == ["lost", "known"]
    second.tick(stream.now + RELEASE_GRACE_NS + 1)
    assert (list(second.sequences), second.invariants.num_broken) == (["known"], 0)


def test_tokens_of_a_sequence_not_yet_submitted_are_told_by_the_next_observer(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    [submission, *_] = stream.submit()
    stream.step(["r-0"])
    first = RunState()
    for fact in stream.of(ENGINE):
        first.apply(*fact)
    second, view = restarted(first, tmp_path), RecordingView()
    second.add_view(view)
    second.apply(*submission)
    assert view.gaps == {"r-0": [None]}


def test_a_sequence_whose_engine_died_closes_with_its_ending_after_a_restart(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    first = RunState()
    for fact in (*stream.facts, (ENGINE, SourceGone())):
        first.apply(*fact)
    second = restarted(first, tmp_path)
    for fact in (*stream.end("r-0", "error"), *stream.end_http("http-r-0", 500)):
        second.apply(*fact)
    assert (list(second.sequences), second.invariants.num_broken) == ([], 0)


def test_a_sequence_that_closed_while_its_step_ran_is_in_the_core_after_a_restart(tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    stream.end("r-0", "abort")
    stream.end_http("http-r-0", 499)
    first = RunState()
    for fact in stream.facts:
        first.apply(*fact)
    first.tick(stream.now + RELEASE_GRACE_NS + 1)
    assert list(first.sequences) == []
    second = restarted(first, tmp_path)
    assert second.engines["0"].num_running == 1
    for fact in (*stream.step(["r-0"]), *stream.release("r-0", "abort"), *stream.step()):
        second.apply(*fact)
    assert (second.engines["0"].num_running, second.invariants.num_broken) == (0, 0)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=60,
    deadline=None,
    database=None,
    phases=[Phase.generate],
)
@given(stream=random_runs(), data=st.data())
def test_what_is_in_doubt_stays_so_over_a_restart(stream: FactStream, data: st.DataObject, tmp_path: Path) -> None:
    facts = with_losses(stream, data)
    stop = data.draw(st.integers(0, len(facts)))
    whole, first = RunState(), RunState()
    for fact in facts:
        whole.apply(*fact)
    for fact in facts[:stop]:
        first.apply(*fact)
    second = restarted(first, tmp_path)
    for fact in facts[stop:]:
        second.apply(*fact)
    for hours in range(3):
        now = stream.now + hours * 3600 * 10**9
        for state in (whole, second):
            state.tick(now)
        assert comparable(second) == comparable(whole)


def comparable(state: RunState) -> RunSnapshot:
    """All that is kept of a run, arrivals in their order: they are counted on from the last one that lives."""
    snapshot = state.state()
    for engine in snapshot.engines:
        engine.in_core = {request_id: place for place, request_id in enumerate(engine.in_core)}
    return snapshot


def with_losses(stream: FactStream, data: st.DataObject) -> list[tuple[Source, Fact]]:
    """The stream's facts with up to three gaps, each of up to eight records of one source."""
    facts: list[tuple[Source, Fact]] = list(stream.facts)
    for _ in range(data.draw(st.integers(1, 3))):
        source = data.draw(st.sampled_from([API_SERVER, ENGINE]))
        begin = data.draw(st.integers(0, len(facts)))
        gap = [index for index, fact in enumerate(facts) if fact[0] == source and index >= begin]
        gap = gap[: data.draw(st.integers(1, 8))]
        if gap:
            facts = [
                (source, RecordsLost(len(gap))) if index == gap[-1] else fact
                for index, fact in enumerate(facts)
                if index == gap[-1] or index not in gap
            ]
    return facts
