"""All rings of a run are one stream: in order of time, complete, with losses and ends in their places."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fact_stream import FactStream
from hypothesis import HealthCheck, given, settings
from random_run import random_runs

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import FrameDropped, Record, RequestSubmitted, RequestTaken
from vllm_obs.telemetry.ring_tail import SETTLED_NS, RingTail
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

MakeTail = Callable[..., RingTail]


class Rings:
    """Writers of rings in one directory, by role."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writers: dict[str, FlightRecorder] = {}

    def record(self, role: str, *records: Record, capacity_bytes: int = 1 << 20) -> None:
        if role not in self.writers:
            self.writers[role] = FlightRecorder(self.directory / f"{role}.ring", role, capacity_bytes)
        for record in records:
            self.writers[role].record(record)

    def end(self, role: str) -> None:
        self.writers.pop(role).close()

    def close(self) -> None:
        for role in list(self.writers):
            self.end(role)


@pytest.fixture
def rings(tmp_path: Path) -> Iterator[Rings]:
    rings = Rings(tmp_path)
    yield rings
    rings.close()


@pytest.fixture
def make_tail(tmp_path: Path) -> Iterator[MakeTail]:
    with ExitStack() as stack:

        def make(**options: object) -> RingTail:
            tail = RingTail(tmp_path, **options)  # type: ignore[arg-type]
            stack.callback(tail.close)
            return tail

        yield make


def at(moment: int) -> FrameDropped:
    return FrameDropped("inbox", "decode", moment)


def moments(facts: list[tuple[Source, Fact]]) -> list[tuple[str, int]]:
    return [(source.role, fact.dropped_at) for source, fact in facts if isinstance(fact, FrameDropped)]


def test_rings_are_merged_in_order_of_time(rings: Rings, make_tail: MakeTail) -> None:
    rings.record("EngineCore_DP0", at(1), at(4), at(5), at(9))
    rings.record("APIServer_0", at(2), at(3), at(7))
    tail = make_tail()
    assert moments(list(tail.drain())) == [
        ("EngineCore_DP0", 1),
        ("APIServer_0", 2),
        ("APIServer_0", 3),
        ("EngineCore_DP0", 4),
        ("EngineCore_DP0", 5),
        ("APIServer_0", 7),
        ("EngineCore_DP0", 9),
    ]
    assert list(tail.drain()) == []


def test_within_a_source_the_order_is_the_writers(rings: Rings, make_tail: MakeTail) -> None:
    rings.record("EngineCore_DP0", at(5), at(3), at(8))
    rings.record("APIServer_0", at(4), at(6))
    assert [moment for _, moment in moments(list(make_tail().drain()))] == [4, 5, 3, 6, 8]


def test_sources_know_their_engine(rings: Rings, make_tail: MakeTail) -> None:
    roles = (
        "APIServer_0",
        "EngineCore_DP1",
        "EngineCore_DP0",
        "Worker_DP1_TP0",
        "Worker_TP1",
        "Observer",
        "Workers",
    )
    for role in roles:
        rings.record(role, at(1))
    found = {source.role: (source.engine, source.pid) for source, _ in make_tail().drain()}
    engines = ("", "1", "0", "1", "0", "", "")
    assert found == {role: (engine, os.getpid()) for role, engine in zip(roles, engines, strict=True)}


def test_a_ring_that_appears_later_is_read_from_its_first_record(rings: Rings, make_tail: MakeTail) -> None:
    tail = make_tail()
    assert list(tail.drain()) == []
    rings.record("EngineCore_DP0", at(1))
    assert moments(list(tail.drain())) == [("EngineCore_DP0", 1)]
    rings.record("APIServer_0", at(2))
    assert moments(list(tail.drain())) == [("APIServer_0", 2)]


def test_the_ring_of_a_dead_process_is_read_to_its_end_under_any_name(rings: Rings, make_tail: MakeTail) -> None:
    tail = make_tail()
    rings.record("EngineCore_DP0", at(1))
    assert moments(list(tail.drain())) == [("EngineCore_DP0", 1)]
    rings.record("EngineCore_DP0", at(2))
    rings.end("EngineCore_DP0")
    rings.record("EngineCore_DP0", at(3))
    assert sorted(path.name for path in rings.directory.iterdir()) == [
        "EngineCore_DP0.1.ring",
        "EngineCore_DP0.ring",
    ]
    facts = list(tail.drain())
    assert [fact for _, fact in facts] == [at(2), SourceGone(), at(3)]
    assert facts[0][0].generation != facts[2][0].generation


def test_losses_stand_where_the_records_are_missing(rings: Rings, make_tail: MakeTail) -> None:
    tail = make_tail()
    rings.record("EngineCore_DP0", at(0), capacity_bytes=4096)
    assert len(list(tail.drain())) == 1
    rings.record("EngineCore_DP0", *map(at, range(1, 201)))
    facts = [fact for _, fact in tail.drain()]
    assert isinstance(facts[0], RecordsLost)
    assert facts[0].num == 201 - len(facts)
    assert facts[1:] == [at(moment) for moment in range(facts[0].num + 1, 201)]


def test_a_limit_leaves_the_rest_for_the_next_drain(rings: Rings, make_tail: MakeTail) -> None:
    rings.record("EngineCore_DP0", *map(at, range(0, 3000, 2)))
    rings.record("APIServer_0", *map(at, range(1, 3000, 2)))
    tail = make_tail()
    found: list[int] = []
    while facts := list(tail.drain(7)):
        assert len(facts) <= 7
        found += [moment for _, moment in moments(facts)]
    assert found == list(range(3000))


def test_another_reader_goes_on_from_the_cursors(rings: Rings, make_tail: MakeTail) -> None:
    rings.record("EngineCore_DP0", *map(at, range(0, 100, 2)))
    rings.record("APIServer_0", *map(at, range(1, 100, 2)))
    tail = make_tail()
    first = list(tail.drain(33))
    rings.end("APIServer_0")
    second = list(make_tail(cursors=tail.cursors()).drain())
    assert [moment for _, moment in moments(first + second)] == list(range(100))
    assert list(tail.drain()) == second
    assert [fact for _, fact in make_tail(cursors=tail.cursors()).drain()] == [SourceGone()]


def test_what_is_no_ring_is_left_out_and_said_once(
    rings: Rings, make_tail: MakeTail, caplog: pytest.LogCaptureFixture
) -> None:
    (rings.directory / "broken.ring").write_bytes(b"x" * 10_000)
    (rings.directory / "short.ring").write_bytes(b"x")
    (rings.directory / "notes.txt").write_text("not a ring")
    rings.record("EngineCore_DP0", at(1))
    tail = make_tail()
    assert moments(list(tail.drain())) == [("EngineCore_DP0", 1)]
    assert list(tail.drain()) == []
    assert [name in caplog.text for name in ("broken.ring", "short.ring", "notes.txt")] == [True, True, False]
    assert len(caplog.records) == 2


def test_a_ring_that_is_cut_while_it_is_read_ends_there(rings: Rings, make_tail: MakeTail) -> None:
    rings.record("EngineCore_DP0", at(1))
    rings.record("APIServer_0", at(2))
    tail = make_tail()
    assert len(list(tail.drain())) == 2
    os.truncate(rings.directory / "APIServer_0.ring", 4096)
    rings.record("EngineCore_DP0", at(3))
    facts = [(source.role, fact) for source, fact in tail.drain()]
    assert sorted(facts) == [("APIServer_0", SourceGone()), ("EngineCore_DP0", at(3))]


def test_a_directory_that_is_gone_gives_nothing(tmp_path: Path) -> None:
    assert list(RingTail(tmp_path / "none").drain()) == []


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None, database=None
)
@given(stream=random_runs())
def test_a_run_read_from_its_rings_is_the_run(stream: FactStream, tmp_path: Path) -> None:
    rings = Rings(tmp_path)
    tail = RingTail(tmp_path)
    direct, through_rings = RunState(), RunState()
    for source, record in stream.facts:
        direct.apply(source, record)
        rings.record(source.role, record)
        if isinstance(record, RequestSubmitted | RequestTaken):
            for fact in tail.drain():
                through_rings.apply(*fact)
    for fact in tail.drain():
        through_rings.apply(*fact)
    rings.close()
    tail.close()
    for path in tmp_path.iterdir():
        path.unlink()
    for state in (direct, through_rings):
        state.tick(stream.now)
    assert through_rings.invariants.num_broken == 0
    found = {ledger.request_id: ledger.intervals for ledger in through_rings.ended}
    assert found == {ledger.request_id: ledger.intervals for ledger in direct.ended}


def test_a_directory_that_has_not_changed_is_not_looked_through_again(
    rings: Rings, make_tail: MakeTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings.record("APIServer_0", at(1))
    os.utime(tmp_path, ns=(0, time.time_ns() - SETTLED_NS - 1))
    tail, num_scans, scan = make_tail(), [0], os.scandir

    def counted(path: Path) -> Any:
        num_scans[0] += 1
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    for _ in range(3):
        list(tail.drain())
    assert num_scans == [1]
    rings.record("EngineCore_DP0", at(1))  # changes the directory: looked through until that is long enough ago
    for _ in range(3):
        assert len(list(tail.drain())) <= 1
    assert num_scans == [4]
    assert {stream.source.role for stream in tail._streams.values()} == {"APIServer_0", "EngineCore_DP0"}
