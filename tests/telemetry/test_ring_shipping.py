"""Rings of another host are mirrored whole: by this host's clock, with what was lost missing, once, to the end."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.record_moments import shifted
from vllm_obs.telemetry.records import (
    BlocksChanged,
    FrameDropped,
    ProcessStarted,
    Record,
    RequestTaken,
    StepAnswered,
    WorkerStep,
)
from vllm_obs.telemetry.ring import HEADER_BYTES
from vllm_obs.telemetry.ring_chunk import RingChunkError, encode_positions
from vllm_obs.telemetry.ring_mirror import NUM_KEPT, RingMirror
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.ring_shipping import RingShipper
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

OFFSET_NS = 5_000_000_000
RECORD_IN_ANOTHER_PROCESS = """
import sys, time
from pathlib import Path
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import FrameDropped
recorder = FlightRecorder(Path(sys.argv[1]), "Worker_TP1", 1 << 20)
for number in range(500):
    recorder.record(FrameDropped("w" * 40, "decode", 1000 + number))
print("recorded", flush=True)
time.sleep(60)
"""


def at(moment: int, length: int = 5) -> FrameDropped:
    return FrameDropped("w" * length, "decode", moment)


class TwoHosts:
    """The run directories of a host that records and of the one that it is mirrored to."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.there, self.here = directory / "there", directory / "here"
        self._stack = stack
        for path in (self.there, self.here):
            path.mkdir()
        self.shipper = self.new_shipper()
        self.mirror = self.new_mirror()
        self.tail = RingTail(self.here)
        stack.callback(lambda: self.tail.close())

    def new_shipper(self) -> RingShipper:
        self.shipper = RingShipper(self.there)
        self._stack.callback(self.shipper.close)
        return self.shipper

    def new_mirror(self, offset_ns: int = OFFSET_NS) -> RingMirror:
        self.mirror = RingMirror(self.here, "node1", offset_ns)
        self._stack.callback(self.mirror.close)
        return self.mirror

    def recorder(self, role: str = "Worker_TP1", capacity_bytes: int = 1 << 20) -> FlightRecorder:
        recorder = FlightRecorder(self.there / f"{role}.ring", role, capacity_bytes)
        self._stack.callback(recorder.close)
        return recorder

    def ship(self, max_bytes: int = 4096) -> int:
        """Carry over all there is; how many chunks it took."""
        num_chunks = 0
        while chunk := self.shipper.next_chunk(max_bytes):
            self.mirror.write(chunk)
            num_chunks += 1
        return num_chunks

    def facts(self) -> list[Fact]:
        return [fact for _, fact in self.tail.drain()]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with ExitStack() as stack:
        yield TwoHosts(tmp_path, stack)


def moments(facts: list[Fact]) -> list[int]:
    return [fact.dropped_at for fact in facts if isinstance(fact, FrameDropped)]


def test_records_arrive_by_this_hosts_clock_from_a_process_of_that_host(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    for number in range(1, 200):
        recorder.record(at(number))
    assert hosts.ship(max_bytes=1000) > 1
    found = list(hosts.tail.drain())
    assert moments([fact for _, fact in found]) == [number + OFFSET_NS for number in range(1, 200)]
    with RingReader(hosts.here / "Worker_TP1@node1.ring") as mirror:
        generation = mirror.generation
    assert {source for source, _ in found} == {Source("Worker_TP1", os.getpid(), generation, "0", "node1")}


def test_the_header_tells_what_that_process_does_now(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    hosts.ship()
    recorder.heartbeat(77)
    recorder.begin_step(9)
    recorder.doing(Activity.EXECUTING)
    recorder.advance()
    hosts.ship()
    with (
        RingReader(hosts.here / "Worker_TP1@node1.ring") as mirror,
        RingReader(hosts.there / "Worker_TP1.ring") as origin,
    ):
        seen, meant = mirror.header(), origin.header()
        assert mirror.is_writer_alive()
    assert (seen.host, meant.host) == ("node1", "")
    assert (seen.heartbeat_at, seen.step, seen.progress, seen.activity) == (
        77 + OFFSET_NS,
        9,
        1,
        Activity.EXECUTING,
    )
    assert seen.started_at == meant.started_at + OFFSET_NS
    assert seen.wall_at == meant.wall_at
    assert (seen.role, seen.pid, seen.origin_generation) == (meant.role, meant.pid, meant.generation)


def test_nothing_new_is_no_chunk(hosts: TwoHosts) -> None:
    assert hosts.shipper.next_chunk() == b""
    recorder = hosts.recorder()
    recorder.record(at(1))
    assert hosts.ship() == 1
    assert hosts.shipper.next_chunk() == b""


def test_a_chunk_is_bounded_and_every_ring_gets_its_turn(hosts: TwoHosts) -> None:
    busy, quiet = hosts.recorder("Worker_TP0"), hosts.recorder("Worker_TP1")
    for number in range(1, 3000):
        busy.record(at(number, length=100))
    quiet.record(at(5))
    chunks = [hosts.shipper.next_chunk(10_000) for _ in range(2)]
    assert max(map(len, chunks)) < 20_000
    for chunk in chunks:
        hosts.mirror.write(chunk)
    assert {source.role for source, _ in hosts.tail.drain()} == {"Worker_TP0", "Worker_TP1"}


def test_what_the_writer_lapped_is_missing_and_the_newest_is_told(hosts: TwoHosts) -> None:
    recorder = hosts.recorder(capacity_bytes=4096)
    recorder.record(at(1))
    hosts.ship()
    for number in range(2, 1000):
        recorder.record(at(number))
    hosts.ship()
    recorder.record(at(1000))
    hosts.ship()
    facts = hosts.facts()
    num_lost = sum(fact.num for fact in facts if isinstance(fact, RecordsLost))
    assert num_lost == hosts.shipper.num_lost == 998
    assert moments(facts) == [1 + OFFSET_NS, 1000 + OFFSET_NS]


def test_what_was_recorded_before_the_first_look_is_shipped_as_far_as_it_is_there(hosts: TwoHosts) -> None:
    recorder = hosts.recorder(capacity_bytes=4096)
    for number in range(1, 1000):
        recorder.record(at(number))
    hosts.ship()
    facts = hosts.facts()
    told = moments(facts)
    assert told[-1] == 999 + OFFSET_NS
    assert len(told) + hosts.shipper.num_lost == 999
    assert told == list(range(told[0], told[-1] + 1))


def test_records_that_the_writer_dropped_are_lost_here_too(hosts: TwoHosts) -> None:
    recorder = hosts.recorder(capacity_bytes=4096)
    recorder.record(at(1))
    recorder.record(at(2, length=4000))
    recorder.record(at(3))
    recorder.record(at(4, length=4000))
    hosts.ship()
    facts = hosts.facts()
    assert facts == [at(1 + OFFSET_NS), RecordsLost(1), at(3 + OFFSET_NS), RecordsLost(1)]


def test_a_lost_chunk_shows_as_loss_and_one_that_comes_twice_does_no_harm(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    for number in (1, 2, 3):
        recorder.record(at(number))
        chunk = hosts.shipper.next_chunk()
        if number != 2:
            hosts.mirror.write(chunk)
            hosts.mirror.write(chunk)
    assert hosts.facts() == [at(1 + OFFSET_NS), RecordsLost(1), at(3 + OFFSET_NS)]


def test_a_shipper_that_was_started_again_goes_on_where_the_mirror_is(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    for number in range(1, 50):
        recorder.record(at(number))
    hosts.ship()
    hosts.shipper.close()
    recorder.record(at(50))
    hosts.new_shipper().resume(hosts.mirror.positions())
    assert hosts.ship() == 1
    assert moments(hosts.facts()) == [number + OFFSET_NS for number in range(1, 51)]
    assert hosts.shipper.num_lost == 0


@pytest.mark.parametrize("is_closed", [True, False])
def test_another_mirror_goes_on_where_the_one_before_it_ended(hosts: TwoHosts, is_closed: bool) -> None:
    recorder = hosts.recorder()
    for number in range(1, 50):
        recorder.record(at(number))
    hosts.ship()
    before = hosts.mirror
    if is_closed:
        before.close()
    for number in range(50, 60):
        recorder.record(at(number))
    hosts.shipper.resume(hosts.new_mirror().positions())
    hosts.ship()
    before.close()
    found = list(hosts.tail.drain())
    assert moments([fact for _, fact in found]) == [number + OFFSET_NS for number in range(1, 60)]
    assert not [fact for _, fact in found if isinstance(fact, RecordsLost)]
    ends = [source.generation for source, fact in found if isinstance(fact, SourceGone)]
    last, _ = found[-1] if not isinstance(found[-1][1], SourceGone) else found[-2]
    assert ends == [found[0][0].generation]
    assert ends != [last.generation]
    hosts.shipper.resume(hosts.new_mirror().positions())
    assert hosts.ship() <= 1
    assert moments(hosts.facts()) == []


def test_a_process_that_closed_its_ring_has_ended_in_order(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    recorder.record(at(1))
    recorder.close()
    hosts.ship()
    assert hosts.facts() == [at(1 + OFFSET_NS), SourceGone()]
    with RingReader(hosts.here / "Worker_TP1@node1.ring") as mirror:
        assert mirror.header().closed_at > OFFSET_NS
    assert hosts.shipper.next_chunk() == b""


def test_a_killed_process_is_read_to_its_end_and_is_gone(hosts: TwoHosts) -> None:
    command = [sys.executable, "-c", RECORD_IN_ANOTHER_PROCESS, str(hosts.there / "Worker_TP1.ring")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="src") as process:
        assert process.stdout is not None
        process.stdout.readline()
        hosts.ship()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    hosts.ship()
    facts = hosts.facts()
    assert moments(facts) == [1000 + number + OFFSET_NS for number in range(500)]
    assert isinstance(facts[-1], SourceGone)
    with RingReader(hosts.here / "Worker_TP1@node1.ring") as mirror:
        assert mirror.header().closed_at == 0


def test_a_torn_record_is_lost_alone(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    for number in range(1, 11):
        recorder.record(at(number))
    with (hosts.there / "Worker_TP1.ring").open("r+b") as ring:
        ring.seek(HEADER_BYTES + 4 * 48 + 20)
        ring.write(b"torn")
    hosts.ship()
    facts = hosts.facts()
    assert len(moments(facts)) == 9
    assert [fact.num for fact in facts if isinstance(fact, RecordsLost)] == [1]


def test_a_process_of_the_same_role_has_a_mirror_of_its_own_and_old_ones_go(hosts: TwoHosts) -> None:
    for number in range(NUM_KEPT + 4):
        recorder = hosts.recorder()
        recorder.record(at(number + 1))
        recorder.close()
        hosts.ship()
        (hosts.there / "Worker_TP1.ring").unlink()
        hosts.ship()
    assert moments(hosts.facts())[-1] == NUM_KEPT + 4 + OFFSET_NS
    assert len(list(hosts.here.glob("*.ring"))) == NUM_KEPT + 1


def test_a_lost_host_ends_its_processes_here(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    recorder.record(at(1))
    hosts.ship()
    assert hosts.facts() == [at(1 + OFFSET_NS)]
    hosts.mirror.close()
    assert hosts.facts() == [SourceGone()]
    recorder.record(at(2))
    hosts.ship()
    assert hosts.facts() == []


def test_mirrors_and_the_observer_of_that_host_are_not_shipped_on(hosts: TwoHosts) -> None:
    hosts.recorder("Observer").record(at(1))
    back = RingShipper(hosts.here)
    hosts.recorder("Worker_TP1").record(at(2))
    hosts.ship()
    assert back.next_chunk() == b""
    back.close()
    assert {source.role for source, _ in hosts.tail.drain()} == {"Worker_TP1"}


def test_a_new_measurement_of_the_clocks_holds_for_what_comes_then(hosts: TwoHosts) -> None:
    recorder = hosts.recorder()
    recorder.record(at(1))
    hosts.ship()
    hosts.mirror.offset_ns = OFFSET_NS + 10
    recorder.record(at(2))
    hosts.ship()
    assert moments(hosts.facts()) == [1 + OFFSET_NS, 2 + OFFSET_NS + 10]


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        b"\x00",
        b"\x92\x01",
        random.Random(1).randbytes(100),
        encode_positions({1: 2})[:-1] + b"\xc1",
        b"\x92\x02\x90",
    ],
)
def test_bytes_that_are_no_chunk_are_refused_and_write_nothing(hosts: TwoHosts, chunk: bytes) -> None:
    with pytest.raises(RingChunkError):
        hosts.mirror.write(chunk)
    assert list(hosts.here.iterdir()) == []


@pytest.mark.parametrize("role", ["../../evil", "a/b", "", "x" * 65, "a b", "Worker\n"])
def test_a_role_that_is_no_name_is_refused(hosts: TwoHosts, role: str) -> None:
    recorder = FlightRecorder(hosts.there / "odd.ring", role or " ", 4096)
    recorder.record(at(1))
    recorder.close()
    if len(role) > 64:
        return  # its writer has cut it
    with pytest.raises(RingChunkError):
        hosts.mirror.write(hosts.shipper.next_chunk())
    assert list(hosts.here.iterdir()) == []


@pytest.mark.parametrize("host", ["", "a/b", "..", "x" * 65, "a b", "a\n"])
def test_a_host_that_is_no_name_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="no host name"):
        RingMirror(tmp_path, host)


@pytest.mark.parametrize(
    ("record", "meant"),
    [
        (ProcessStarted("Worker_TP1", 7, 100, 999), ProcessStarted("Worker_TP1", 7, 130, 999)),
        (WorkerStep(1, 0, 10, 20, 30, 0, 50, 4, 2), WorkerStep(1, 0, 40, 50, 60, 0, 80, 4, 2)),
        # The moment of sending is by the clock of the API server, which sent it along.
        (RequestTaken("a", 0, 5, 9, 1, 1, 0), RequestTaken("a", 0, 5, 39, 1, 1, 0)),
        (StepAnswered(3, 1, 2, 3, ["a"], [1], 0), StepAnswered(3, 31, 32, 33, ["a"], [1], 0)),
        (BlocksChanged(3, ["a"], [[1]], [[]], [0]), BlocksChanged(3, ["a"], [[1]], [[]], [0])),
    ],
)
def test_only_moments_are_moved_and_those_that_are_none_stay(record: Record, meant: Record) -> None:
    assert shifted(record, 30) == meant
