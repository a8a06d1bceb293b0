"""The watchdog names the process that holds an engine up, once, records it, and leaves alone whoever moves."""

import asyncio
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_headers import FakeHeaders
from scripted_run import MODEL, ScriptedRun

from vllm_obs.engine.synthetic.regimes import Arrival, Stall
from vllm_obs.engine.synthetic.simulated_ring import SimulatedHeader, SimulatedSource
from vllm_obs.engine.synthetic.simulation import Simulation, SimulationOptions
from vllm_obs.engine.synthetic.virtual_time import BEGUN_AT
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.process_reader import ProcessReader
from vllm_obs.telemetry.records import EngineStateChanged, Record, RequestSubmitted, StallBegun, StallEnded
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.stack_archive import MAX_KEPT, StackArchive
from vllm_obs.telemetry.view import RecordsLost, Source
from vllm_obs.telemetry.watchdog import Watchdog, WatchdogPorts, WatchdogSettings
from vllm_obs.telemetry.watchdog_headers import RunHeaders
from vllm_obs.telemetry.watchdog_log import StallLog
from vllm_obs.telemetry.watchdog_rule import ProcessLook

S = 10**9


class FakeProcesses(ProcessReader):
    """Says of the processes in `stopped` that they are, and of all others that they sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: set[int] = set()

    def state_of(self, pid: int) -> str:
        return "T" if pid in self.stopped else "S"


class Watched:
    """A watchdog over rings in a directory, or over what it is told; time is its caller's."""

    def __init__(self, run_dir: Path, stall_seconds: float = 10.0, headers: RunHeaders | None = None) -> None:
        self.observer = Observer("run", run_dir)
        self.records: list[Record] = []
        self.log = StallLog()
        self.processes = FakeProcesses()
        self.observer.add_views([self.log])
        ports = WatchdogPorts(
            headers or RunHeaders(run_dir), self.processes, lambda run_dir: {"a": "File x, line 1"}
        )
        settings = WatchdogSettings(run_dir, stall_seconds)
        self.watchdog = Watchdog(self.observer, settings, self.log, self.records.append, ports)

    def look(self, now: int) -> None:
        self.watchdog.look(now, self.observer.drain_slice())

    def look_until(self, begin: int, seconds: float) -> int:
        """A round every quarter of a second from `begin` on; the moment of the last."""
        for number in range(int(4 * seconds) + 1):
            self.look(begin + number * S // 4)
        return begin + number * S // 4


@pytest.fixture
def watched(tmp_path: Path) -> Any:
    watched = Watched(tmp_path)
    watched.observer.tail = RingTail(tmp_path)
    yield watched
    asyncio.run(watched.watchdog.close())
    watched.observer.close()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


def stall_of(watched: Watched) -> StallBegun:
    (stall,) = watched.watchdog.current()
    return stall


def test_a_core_that_hangs_in_a_step_is_named_with_what_it_does(watched: Watched, run: ScriptedRun) -> None:
    run.submit("a")
    run.step("a")
    run.submit("b")
    run.core.doing(Activity.UPDATING)
    last = watched.look_until(run.now, 9.75)
    assert watched.watchdog.current() == []
    watched.look(last + S // 4)
    stall = stall_of(watched)
    assert stall == StallBegun(
        engine="0",
        role="EngineCore_DP0",
        pid=os.getpid(),
        rank=-1,
        activity="updating",
        step=1,
        process_state="S",
        says="Engine 0 has 1 running and 1 waiting, and does not move: EngineCore_DP0 "
        f"(pid {os.getpid()}) does not get on, now applying the answer of step 1.",
        stuck_at=run.now,
        noticed_at=run.now + 10 * S,
    )
    watched.look_until(run.now + 10 * S, 60)
    assert watched.records == [stall]
    run.core.advance()
    watched.look(run.now + 71 * S)
    assert watched.records == [stall, StallEnded("0", stall.role, stall.pid, stall.stuck_at, run.now + 71 * S)]
    assert watched.watchdog.current() == []


def test_a_request_that_an_idle_core_does_not_take_is_a_stall(watched: Watched, run: ScriptedRun) -> None:
    run.serve("a")
    last = watched.look_until(run.now, 30)
    run.core.heartbeat(last)
    # Sent, and never taken: the core's ring says nothing of it.
    run.api.record(_submitted(last + 1))
    watched.processes.stopped = {os.getpid()}
    watched.look_until(last, 11)
    stall = stall_of(watched)
    assert (stall.role, stall.process_state) == ("EngineCore_DP0", "T")
    assert "has 0 running and 0 waiting, and 1 that it has not taken, and does not move" in stall.says
    assert stall.says.endswith("is stopped by a signal, last seen waiting for messages.")


def test_a_paused_engine_and_one_that_loads_are_left_alone(watched: Watched, run: ScriptedRun) -> None:
    run.submit("a")
    run.step("a")
    run.core.record(EngineStateChanged("paused", run.now))
    run.core.heartbeat(run.now)
    run.core.doing(Activity.PAUSED)
    last = watched.look_until(run.now, 120)
    assert watched.watchdog.states() == {"0": "paused", "APIServer_0": "loading"}
    run.core.doing(Activity.LOADING_MODEL)
    watched.look_until(last, 120)
    assert watched.records == []


def test_an_api_server_that_is_stopped_is_named(watched: Watched, run: ScriptedRun) -> None:
    run.api.doing(Activity.SERVING)
    run.api.heartbeat(run.now)
    watched.look_until(run.now, 11)
    stall = stall_of(watched)
    assert (stall.engine, stall.role, stall.rank, stall.activity) == ("", "APIServer_0", -1, "serving")
    assert stall.says == (
        f"An API server takes no requests and sends no tokens: APIServer_0 (pid {os.getpid()}) "
        "is held up in one piece of work, and answers nobody."
    )


def test_a_launcher_that_is_stopped_is_named(tmp_path: Path) -> None:
    headers = FakeHeaders()
    watched = Watched(tmp_path, headers=headers)
    launcher = ProcessLook("Launcher", 7, -1, 1, S, 0, 0, Activity.SERVING, 0)
    headers.looks = [launcher]
    watched.processes.stopped = {7}
    last = watched.look_until(S, 11)
    stall = stall_of(watched)
    assert (stall.engine, stall.role, stall.process_state) == ("", "Launcher", "T")
    assert stall.says == (
        "The launcher hands out no new connections, and starts nothing again that dies: Launcher (pid 7) "
        "is stopped by a signal, and answers nobody."
    )
    headers.looks = [launcher._replace(heartbeat_at=last)]
    watched.look(last + S // 4)
    assert watched.watchdog.current() == []
    headers.looks = [launcher._replace(activity=Activity.STOPPING)]
    watched.look_until(last + S, 30)
    assert watched.watchdog.states() == {"Launcher": "ending"}


def test_a_backlog_of_records_is_nobodys_stall(watched: Watched, run: ScriptedRun) -> None:
    run.submit("a")
    run.step("a")
    while not watched.observer.drain_slice():
        pass
    run.core.heartbeat(run.now)
    run.core.doing(Activity.WAITING)
    # What the Observer has read says that "a" runs; that it ended is not read yet, and the core says it is idle.
    for number in range(60):
        watched.watchdog.look(run.now + number * S // 2, is_drained=False)
    assert watched.records == []


def test_of_whom_records_were_lost_nobody_knows_that_they_are_still_there(
    watched: Watched, run: ScriptedRun
) -> None:
    run.submit("a")
    run.step("a")
    watched.look(run.now)
    # That "a" was released, and that "b" was taken and released, is lost; the core is idle.
    state = watched.observer.state
    state.apply(state.engines["0"].source, RecordsLost(3))
    run.core.heartbeat(run.now + 1)
    run.core.doing(Activity.WAITING)
    watched.look_until(run.now + 1, 60)
    assert watched.records == []
    assert watched.watchdog.states()["0"] == "idle"


def test_an_engine_that_is_gone_stands_still_no_longer(watched: Watched, run: ScriptedRun) -> None:
    run.submit("a")
    run.core.doing(Activity.EXECUTING)
    last = watched.look_until(run.now, 11)
    run.core.close()
    watched.look(last + S // 4)
    assert [type(record) for record in watched.records] == [StallBegun, StallEnded]


def test_a_stall_is_told_with_stacks_and_written_down(
    tmp_path: Path, watched: Watched, run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[StallBegun, Mapping[str, str]]] = []

    def broken(stall: StallBegun, stacks: Mapping[str, str]) -> None:
        raise RuntimeError("planted")

    async def scenario() -> None:
        watched.watchdog.on_stall(broken)
        watched.watchdog.on_stall(lambda stall, stacks: told.append((stall, stacks)))
        run.core.doing(Activity.SCHEDULING)
        watched.look_until(run.now, 11)
        async with asyncio.timeout(20):
            while not told:
                await asyncio.sleep(0.005)

    asyncio.run(scenario())
    stall = stall_of(watched)
    assert told == [(stall, {"a": "File x, line 1"})]
    (path,) = (tmp_path / "stalls").iterdir()
    assert path.read_text() == f"{stall.says}\n\n== a\nFile x, line 1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [record.message for record in caplog.records if "stood still" in record.message] == [
        f"{stall.says} It has stood still for 10.0 s."
    ]


def restarted(tmp_path: Path, before: Watched) -> Watched:
    """Another Observer's watchdog, which knows what the one before kept in its checkpoint."""
    watched = Watched(tmp_path)
    watched.observer.tail = RingTail(tmp_path)
    for record in before.records:
        before.log.record(Source("Observer", 9, 90, ""), record)
    watched.log.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(before.log.state())))
    return watched


def test_a_stall_goes_on_under_another_observer(tmp_path: Path, watched: Watched, run: ScriptedRun) -> None:
    run.submit("a")
    run.step("a")
    run.core.doing(Activity.UPDATING)
    last = watched.look_until(run.now, 11)
    stall = stall_of(watched)
    second = restarted(tmp_path, watched)
    last = second.look_until(last + S, 30)
    assert (second.watchdog.current(), second.records) == ([stall], [])
    assert second.watchdog.states()["0"] == "stalled"
    run.core.advance()
    second.look(last + S)
    ended = StallEnded("0", stall.role, stall.pid, stall.stuck_at, last + S)
    assert (second.watchdog.current(), second.records) == ([], [ended])
    asyncio.run(second.watchdog.close())
    second.observer.close()


def test_a_stall_that_ended_while_nobody_looked_is_ended(
    tmp_path: Path, watched: Watched, run: ScriptedRun
) -> None:
    run.submit("a")
    run.core.doing(Activity.SCHEDULING)
    last = watched.look_until(run.now, 11)
    stall = stall_of(watched)
    run.step("a")
    second = restarted(tmp_path, watched)
    second.look(last + S)
    assert second.records == [StallEnded("0", stall.role, stall.pid, stall.stuck_at, last + S)]
    second.look_until(last + S, 9)
    assert (second.watchdog.current(), len(second.records)) == ([], 1)
    asyncio.run(second.watchdog.close())
    second.observer.close()


def test_a_stall_that_was_not_told_of_is_told_by_the_next_observer_and_filed_once(
    tmp_path: Path, watched: Watched, run: ScriptedRun
) -> None:
    run.submit("a")
    run.core.doing(Activity.SCHEDULING)
    last = watched.look_until(run.now, 11)  # without a loop, so that its stacks are never taken
    told: list[StallBegun] = []

    async def another_looks() -> None:
        second = restarted(tmp_path, watched)
        second.watchdog.on_stall(lambda stall, stacks: told.append(stall))
        second.look(last)
        await asyncio.gather(*second.watchdog._telling)
        second.look(last + S)
        await second.watchdog.close()
        second.observer.close()

    for _ in range(2):
        asyncio.run(another_looks())
    assert told == [stall_of(watched)]


def test_only_the_last_stacks_are_kept(tmp_path: Path) -> None:
    archive = StackArchive(tmp_path)
    stall = StallBegun("0", "EngineCore_DP0", 1, -1, "executing", 1, "T", "It stands still.", 1, 0)
    for number in range(3 * MAX_KEPT):
        archive.save(stall._replace(noticed_at=number), {})
    kept = sorted(int(path.name.partition("-")[0]) for path in archive.directory.iterdir())
    assert kept == list(range(2 * MAX_KEPT, 3 * MAX_KEPT))


def test_an_hour_of_the_real_core_over_slow_ranks_has_those_stalls_that_were_made(tmp_path: Path) -> None:
    """Two ranks that take a second for eight tokens: prompts of a minute, queues, gaps of minutes, and stops."""
    headers, stops = FakeHeaders(), [Stall(500.0, 16.0), Stall(1700.0, 30.0), Stall(2900.0, 8.0)]
    watched = Watched(tmp_path, headers=headers)

    def take(at: int, source: SimulatedSource, record: Record) -> None:
        watched.observer.state.apply(Source(*source), record)

    def look(moment: int, seen: dict[str, SimulatedHeader]) -> None:
        headers.looks = [_look_of(header) for header in seen.values()]
        watched.processes.stopped = {header.pid for header in seen.values() if header.is_stopped}
        watched.look(moment)

    step_time = {"base_seconds": 0.1, "seconds_per_token": 0.117}
    options = SimulationOptions(step_time=step_time, start_seconds=120.0)
    simulation = Simulation(_hour_of_arrivals(), stops, options, take, look)
    simulation.run(3600.0)
    begun = [record for record in watched.records if isinstance(record, StallBegun)]
    begin = BEGUN_AT + int(120.1 * S)
    assert [(stall.role, stall.rank, stall.process_state) for stall in begun] == [("Worker_TP1", 1, "T")] * 2
    for stall, stop in zip(begun, stops, strict=False):
        # One that is at rest when it is stopped is missed from its next step on.
        assert 10 * S <= stall.noticed_at - max(begin + int(stop.at_seconds * S), stall.stuck_at) <= 11 * S
        assert "is stopped by a signal, last seen" in stall.says
    assert len(watched.records) == 4


def _hour_of_arrivals() -> list[Arrival]:
    rng = random.Random(4)
    calm = [Arrival(at, rng.randint(8, 40), rng.randint(2, 8), "", "") for at in range(10, 2000, 24)]
    long = [Arrival(float(at), 512, 2, "", "") for at in (300, 900, 2100)]
    under_stops = [Arrival(at, 30, 60, "", "") for at in (498.0, 1698.0, 2898.0)]
    queue = [Arrival(1200.0 + number / 10, 12, 3, "", "") for number in range(50)]
    return sorted(calm + long + under_stops + queue)


def _look_of(header: SimulatedHeader) -> ProcessLook:
    rank = int(header.role.removeprefix("Worker_TP")) if header.role.startswith("Worker") else -1
    words = (header.heartbeat_at, header.step, header.progress, header.activity, header.activity_at)
    return ProcessLook(header.role, header.pid, rank, header.pid, *words)


def _submitted(at: int) -> RequestSubmitted:
    moments = [at] * 5
    return RequestSubmitted("b-0-0", 0, "b", "", 0, 1, 1, "chat", True, MODEL, "", *moments, 20, 3, 0, 1.0, 1.0, 0)
