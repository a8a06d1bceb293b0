"""An Observer reads the ranks of another host from their mirrors like those of its own, but asks no kernel."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_run import MS, ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.death_watch import DeathWatch
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.inspect_processes import process_rows
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import ProcessStarted, WorkerStep
from vllm_obs.telemetry.ring_mirror import RingMirror
from vllm_obs.telemetry.ring_shipping import RingShipper
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.stacks import live_processes
from vllm_obs.telemetry.watchdog_headers import RunHeaders, engines_of

ROLE = "Worker_TP0_PP1"
CLOCK_BEHIND_NS = 77_000_000_000


class TwoHostRun:
    """A scripted run here, and a rank of it on a host whose clock is far behind."""

    def __init__(self, directory: Path) -> None:
        self.here, there = directory / "here", directory / "there"
        self.here.mkdir()
        there.mkdir()
        self.run = ScriptedRun(self.here)
        self.rank = FlightRecorder(there / f"{ROLE}.ring", ROLE, 1 << 16)
        self.shipper = RingShipper(there)
        self.mirror = RingMirror(self.here, "node1", CLOCK_BEHIND_NS)
        self.observer = Observer("run", self.here)
        self.observer.tail = RingTail(self.here)

    def start(self) -> None:
        self.run.start()
        at = self.run.now - CLOCK_BEHIND_NS
        self.rank.record(ProcessStarted(ROLE, os.getpid(), at, 5))

    def step(self, name: str) -> None:
        """A step whose second rank is there, and tells of it a little later than it was."""
        number = self.run.step(name)
        begun_at = self.run.now - 10 * MS - CLOCK_BEHIND_NS
        moments = (begun_at + 2 * MS, begun_at + 3 * MS, begun_at + 7 * MS, begun_at + 7 * MS, begun_at + 9 * MS)
        self.rank.begin_step(number)
        self.rank.doing(Activity.EXECUTING)
        self.rank.record(WorkerStep(number, 1, *moments, 1, 1))

    def read(self) -> None:
        while chunk := self.shipper.next_chunk():
            self.mirror.write(chunk)
        while not self.observer.drain_slice():
            continue

    def close(self) -> None:
        for each in (self.run, self.rank, self.shipper, self.mirror, self.observer):
            each.close()


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHostRun]:
    found = TwoHostRun(tmp_path)
    yield found
    found.close()


def test_a_steps_ranks_are_together_whichever_host_they_are_on(two_hosts: TwoHostRun) -> None:
    two_hosts.start()
    two_hosts.run.submit("a")
    for _ in range(3):
        two_hosts.step("a")
    two_hosts.read()
    engine = two_hosts.observer.state.engines["0"]
    assert [[worker.rank for worker in step.workers] for step in engine.steps] == [[0, 1]] * 3
    step = engine.steps.last
    assert step is not None
    assert step.workers[1].sampled_at == step.answered.sampled_at  # type: ignore[union-attr]
    assert two_hosts.observer.state.invariants.num_broken == 0


def test_its_host_is_told_and_no_kernel_is_asked_about_its_pid(two_hosts: TwoHostRun) -> None:
    two_hosts.start()
    two_hosts.read()
    (look,) = engines_of(RunHeaders(two_hosts.here).look())
    assert [(worker.role, worker.host) for worker in look.workers] == [(ROLE, "node1")]
    rows = {row["role"]: row for row in process_rows(two_hosts.observer.state.processes, two_hosts.here, 0)}
    assert (rows[ROLE]["host"], rows[ROLE]["rss_bytes"], rows[ROLE]["ring"]) == (
        "node1",
        None,
        f"{ROLE}@node1.ring",
    )
    assert rows["EngineCore_DP0"]["rss_bytes"] > 0
    assert ROLE not in [role for role, _ in live_processes(two_hosts.here)]


def test_a_lost_connection_is_no_death_and_the_process_is_back_with_it(two_hosts: TwoHostRun) -> None:
    watch = DeathWatch(two_hosts.here)
    two_hosts.start()
    two_hosts.read()
    watch.look(1)
    two_hosts.mirror.close()
    two_hosts.read()
    assert watch.look(2) == []
    (row,) = [row for row in rows_of(two_hosts) if row["role"] == ROLE]
    assert row["state"] == "gone"
    two_hosts.mirror = RingMirror(two_hosts.here, "node1", CLOCK_BEHIND_NS)
    two_hosts.shipper.resume(two_hosts.mirror.positions())
    two_hosts.read()
    (row,) = [row for row in rows_of(two_hosts) if row["role"] == ROLE]
    assert row["state"] == "starting"
    assert two_hosts.observer.state.num_lost == {}
    watch.close()


def rows_of(two_hosts: TwoHostRun) -> list[dict[str, object]]:
    return process_rows(two_hosts.observer.state.processes, two_hosts.here, 0)
