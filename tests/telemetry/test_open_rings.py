"""Rings stay open from look to look, until somebody is done with them or they are gone."""

import os
from pathlib import Path

import pytest

from vllm_obs.telemetry import open_rings
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.open_rings import OpenRings


def ring(directory: Path, name: str) -> None:
    FlightRecorder(directory / f"{name}.ring", name, 4096).close()


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_ring_is_opened_once_whatever_it_is_called(tmp_path: Path) -> None:
    rings = OpenRings(tmp_path)
    ring(tmp_path, "EngineCore_DP0")
    (first,) = rings.look()
    (tmp_path / "EngineCore_DP0.ring").rename(tmp_path / "EngineCore_DP0.7.ring")
    ring(tmp_path, "EngineCore_DP0")
    assert [reader is first for reader in rings.look()] == [True, False]
    rings.close()


def test_one_that_is_done_with_or_gone_is_closed_and_seen_no_more(tmp_path: Path) -> None:
    num_before = num_open_files()
    rings = OpenRings(tmp_path)
    for name in ("a", "b"):
        ring(tmp_path, name)
    for reader in rings.look():
        if reader.path.name == "a.ring":
            rings.done(reader)
    assert [reader.path.name for reader in rings.look()] == ["b.ring"]
    (tmp_path / "b.ring").unlink()
    assert list(rings.look()) == []
    assert num_open_files() == num_before


def test_those_for_which_there_was_no_room_come_when_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_rings, "MAX_RINGS", 2)
    for number in range(5):
        ring(tmp_path, f"r{number}")
    rings, seen = OpenRings(tmp_path), set()
    for _ in range(3):
        looked = list(rings.look())
        assert len(looked) <= 2
        for reader in looked:
            seen.add(reader.path.name)
            rings.done(reader)
    assert seen == {f"r{number}.ring" for number in range(5)}
    rings.close()


def test_a_new_ring_in_the_place_of_one_that_was_done_is_seen(tmp_path: Path) -> None:
    rings = OpenRings(tmp_path)
    ring(tmp_path, "a")
    (first,) = rings.look()
    rings.done(first)
    path = tmp_path / "a.ring"
    inode = path.stat().st_ino
    os.utime(path, ns=(1, 1))
    assert list(rings.look()) == []  # only its time is another
    (tmp_path / "elsewhere").mkdir()
    ring(tmp_path / "elsewhere", "b")
    path.write_bytes((tmp_path / "elsewhere" / "b.ring").read_bytes())
    (second,) = rings.look()
    assert (path.stat().st_ino, second.header().role, second.generation != first.generation) == (inode, "b", True)
    assert list(rings.look()) == [second]
    rings.close()


def test_a_file_that_is_no_ring_is_tried_again_once_it_is_written(tmp_path: Path) -> None:
    rings = OpenRings(tmp_path)
    (tmp_path / "a.ring").write_bytes(b"no ring")
    assert list(rings.look()) == []
    (tmp_path / "elsewhere").mkdir()
    ring(tmp_path / "elsewhere", "b")
    (tmp_path / "a.ring").write_bytes((tmp_path / "elsewhere" / "b.ring").read_bytes())
    assert [reader.header().role for reader in rings.look()] == ["b"]
    rings.close()


def test_what_is_known_of_files_that_are_gone_is_forgotten(tmp_path: Path) -> None:
    rings = OpenRings(tmp_path)
    for number in range(3):
        ring(tmp_path, f"r{number}")
    for reader in rings.look():
        rings.done(reader)
    for path in tmp_path.glob("*.ring"):
        path.unlink()
    assert (list(rings.look()), rings._done) == ([], {})
