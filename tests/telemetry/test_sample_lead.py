"""Profiles by samples begin alone where py-spy may look at all; else processes are ordered, and waited for."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_obs.telemetry import sample_lead
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.profile_book import ProfileBook
from vllm_obs.telemetry.profile_control import BegunProfile, ProfileOrder
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded, Record
from vllm_obs.telemetry.sample_lead import LeadPorts, SampleLead, make_directory
from vllm_obs.telemetry.sample_merge import read_table
from vllm_obs.telemetry.telemetry_control import OrderError
from vllm_obs.telemetry.view import Source

SPEEDSCOPE = '{"shared": {"frames": []}, "profiles": []}'
ENGINE = ("EngineCore_DP0", os.getpid())


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run in which an engine and the Observer live: here both are this process."""
    directory = tmp_path / "run"
    directory.mkdir()
    recorders = [FlightRecorder(directory / f"{role}.ring", role, 4096) for role in (ENGINE[0], "Observer")]
    yield directory
    for recorder in recorders:
        recorder.close()


class Observing:
    """A lead over a run, with the records it makes put where the Observer would find them."""

    def __init__(self, run_dir: Path, program: str | None = None) -> None:
        self.book = ProfileBook()
        self.recorder = MemoryRecorder()
        ports = LeadPorts(self.record, self.catch_up, lambda: program)
        self.lead = SampleLead(run_dir, self.book, ports)
        self.directory = run_dir / "profiles" / "p1"

    def record(self, record: Record) -> None:
        self.recorder.record(record)
        self.book.record(Source("Observer", 1, 1, ""), record)

    async def catch_up(self) -> None:
        pass

    def begun(self, sampler: str = "auto", seconds: float = 0.1) -> BegunProfile:
        async def wait_over() -> bool:
            raise AssertionError("it waits for its own part too")

        order = ProfileOrder("samples", seconds, sampler=sampler, rate_hz=50.0)
        return BegunProfile("p1", str(self.directory), order, wait_over)

    def engine_ends(self) -> None:
        self.record(ProfileEnded("p1", "samples", *ENGINE, -1, 0, 1, 1, 1, [], ""))


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await play

    asyncio.run(bounded())


def program(directory: Path, script: str) -> str:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_py_spy_begins_without_the_processes(run_dir: Path) -> None:
    observing = Observing(run_dir, program(run_dir.parent, f"echo '{SPEEDSCOPE}' > \"$last\""))

    async def play() -> None:
        begun = observing.begun(seconds=1)
        assert await observing.lead.begin(begun)
        assert {part.begun.role for part in observing.book.profiles["p1"].parts.values() if part.begun} == {
            "EngineCore_DP0",
            "Observer",
        }
        await observing.lead.run(begun)

    run(play())
    assert observing.book.profiles["p1"].is_over
    table = read_table(observing.directory)
    assert table is not None
    assert (table["sampler"], table["missing"]) == ("py-spy", [])
    assert observing.directory.stat().st_mode & 0o777 == 0o700


def test_without_py_spy_the_processes_are_ordered_and_waited_for(run_dir: Path) -> None:
    observing = Observing(run_dir)

    async def play() -> None:
        begun = observing.begun()
        assert not await observing.lead.begin(begun)
        assert not observing.directory.exists()
        # What the API server does now.
        make_directory(observing.directory, is_named=False)
        part = asyncio.create_task(observing.lead.run(begun))
        await asyncio.sleep(0.5)
        assert not observing.recorder.of(ProfileEnded)
        observing.engine_ends()
        await part

    run(play())
    (begun,) = observing.recorder.of(ProfileBegun)
    assert isinstance(begun, ProfileBegun)
    assert (begun.role, begun.max_seconds) == ("Observer", 0.1)
    assert observing.book.profiles["p1"].is_over
    table = read_table(observing.directory)
    assert table is not None
    assert (table["sampler"], table["missing"]) == ("in-process", [])
    assert table["says"] == "each process samples itself: py-spy is not installed"
    assert [role["role"] for role in table["roles"]] == ["Observer"]


def test_a_process_that_hangs_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_lead, "GRACE_SECONDS", 0.2)
    observing = Observing(run_dir)
    make_directory(observing.directory, is_named=False)

    async def play() -> None:
        begun = observing.begun("in-process")
        assert not await observing.lead.begin(begun)
        await observing.lead.run(begun)

    run(play())
    table = read_table(observing.directory)
    assert table is not None
    assert table["missing"] == ["EngineCore_DP0"]


def test_py_spy_asked_for_in_vain_is_refused(run_dir: Path) -> None:
    observing = Observing(run_dir)

    async def play() -> None:
        with pytest.raises(OrderError, match="py-spy is not installed") as caught:
            await observing.lead.begin(observing.begun("py-spy"))
        assert caught.value.status == 409

    run(play())
    assert list(observing.recorder.records) == []


def test_files_without_a_place_are_refused(run_dir: Path) -> None:
    (run_dir / "profiles").write_text("a file")
    observing = Observing(run_dir, program(run_dir.parent, "exit 1"))

    async def play() -> None:
        with pytest.raises(OrderError, match="directory cannot be made") as caught:
            await observing.lead.begin(observing.begun())
        assert caught.value.status == 500

    run(play())


def test_of_the_runs_own_profiles_the_newest_are_kept(tmp_path: Path) -> None:
    base = tmp_path / "profiles"
    for number in range(12):
        make_directory(base / f"p{number}", is_named=False)
        os.utime(base / f"p{number}", (number, number))
    assert {path.name for path in base.iterdir()} == {f"p{number}" for number in range(4, 12)}


def test_in_a_directory_of_the_users_nothing_is_removed(tmp_path: Path) -> None:
    for number in range(12):
        make_directory(tmp_path / f"p{number}", is_named=True)
    assert len(list(tmp_path.iterdir())) == 12
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "p1", is_named=True)
