"""How many connections there may be: by the flag, and by the files that a process may open."""

import resource

import pytest

from vllm_obs.server import connection_room
from vllm_obs.server.connection_room import NUM_SPARE_FILES, ConnectionRoom


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


def test_who_waits_longest_comes_first() -> None:
    room: ConnectionRoom[str] = ConnectionRoom(8192)
    for name in ("a", "b", "c"):
        room.waits(name)
    room.waits("a")
    room.is_busy("b")
    room.is_busy("b")
    assert list(room.waiting) == ["c", "a"]
