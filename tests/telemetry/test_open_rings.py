"""Rings stay open from look to look, until somebody is done with them or they are gone."""

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
