"""How many connections there may be: by the flag, and by the files that a process may open."""

import resource

import pytest

from vllm_obs.server import connection_room
from vllm_obs.server.connection_room import (
    NUM_SPARE_CONNECTIONS,
    NUM_SPARE_FILES,
    ConnectionRoom,
)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """(the limit, how many are open) of this process."""
    numbers = [64, 30]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (numbers[0], numbers[0]))
    monkeypatch.setattr(connection_room.os, "listdir", lambda path: [""] * (numbers[1] + 1))
    return numbers


def most(room: ConnectionRoom[str]) -> int:
    return next(number for number in range(10_000) if not room.is_enough_for(number + 1))


def test_the_limit_holds(files: list[int]) -> None:
    files[0] = 100_000
    assert most(ConnectionRoom(20)) == 20


def test_some_files_are_kept_from_connections(files: list[int]) -> None:
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    assert room.is_enough_for(10), "20 of the 30 open files are something else"
    assert most(room) == 64 - 20 - NUM_SPARE_FILES


def test_a_limit_that_is_lowered_holds_at_once(files: list[int]) -> None:
    files[0] = 100_000
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    assert room.is_enough_for(1000)
    files[0] = 64
    assert not room.is_enough_for(60)


def test_without_a_file_to_look_with_there_is_less_room(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object) -> list[str]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(connection_room.os, "listdir", fail)
    assert most(ConnectionRoom(8192)) == 64 - 2 * NUM_SPARE_FILES


def test_no_limit_is_no_limit(files: list[int]) -> None:
    files[0] = resource.RLIM_INFINITY
    assert most(ConnectionRoom(100)) == 100
    assert ConnectionRoom[str](100).most() == 100


def test_the_most_there_may_be_is_told(files: list[int]) -> None:
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    assert room.is_enough_for(10)
    assert room.most() == most(room)
    files[0] = 100_000
    assert room.most() == 8192


def test_who_waits_longest_comes_first() -> None:
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    for name in ("a", "b", "c"):
        room.waits(name)
    room.waits("a")
    room.is_busy("b")
    room.is_busy("b")
    assert list(room.waiting) == ["c", "a"]


def test_whoever_wants_to_know_is_told_of_one_that_is_closed() -> None:
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    closed: list[int] = []
    room.on_closed = lambda: closed.append(len(room.waiting))
    room.waits("a")
    room.is_busy("a")
    assert closed == []
    room.waits("a")
    room.is_closed("a")
    assert closed == [0]


def test_spare_ones_are_bounded_and_give_way_to_each_other_only(files: list[int]) -> None:
    files[0] = 100_000
    room: ConnectionRoom[int] = ConnectionRoom(2)
    for number in range(2, 2 + NUM_SPARE_CONNECTIONS):
        room.waits(number)
        assert room.take_in(number) is None
    room.is_busy(2)
    room.waits(99)
    assert room.take_in(99) == 3
    room.is_closed(3)
    room.waits(1)
    room.waits(100)
    assert room.take_in(100) == 1, "one that has a place is told to leave it first"
    assert room.spare == {2, *range(4, 2 + NUM_SPARE_CONNECTIONS), 99}
    assert NUM_SPARE_CONNECTIONS <= NUM_SPARE_FILES // 2


def test_the_log_tells_that_there_is_no_room_and_not_again_so_soon(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    room: ConnectionRoom[int] = ConnectionRoom(20)
    now = 5_000_000_000
    monkeypatch.setattr(connection_room.time, "monotonic_ns", lambda: now)
    for number in range(30):
        room.waits(number)
        room.take_in(number)
    now += connection_room.TOLD_EVERY_NS
    room.take_in(29)
    counts = [record.getMessage().split(", of ")[0] for record in caplog.records]
    assert counts == [
        "no room for 1 new connection(s) (at most 20",
        "no room for 30 new connection(s) (at most 20",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_newest_one_gives_way_itself_where_all_spare_ones_are_busy() -> None:
    room: ConnectionRoom[int] = ConnectionRoom(0)
    for number in range(NUM_SPARE_CONNECTIONS):
        room.waits(number)
        assert room.take_in(number) is None
        room.is_busy(number)
    room.waits(99)
    assert room.take_in(99) == 99


def test_a_spare_one_takes_the_place_that_has_become_free(files: list[int]) -> None:
    files[0] = 100_000
    room: ConnectionRoom[str] = ConnectionRoom(2)
    room.waits("c")
    assert room.take_in("c") is None
    assert room.is_spare("c", 3)
    assert not room.is_spare("c", 2)
    assert not room.is_spare("c", 3)
    assert (room.spare, room.is_spare("b", 3)) == (set(), False)
