"""Incident folders are private, whole or absent, and so many at most."""

import json
import stat
from pathlib import Path

import pytest

from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import MAX_FILE_BYTES, MAX_INCIDENTS, IncidentShelf

NAME = "20260101-000000-killed-EngineCore_DP0"
DOCUMENT = json.dumps({"name": NAME}).encode()


@pytest.fixture
def shelf(tmp_path: Path) -> IncidentShelf:
    return IncidentShelf(tmp_path)


def test_what_is_filed_can_be_read_back(shelf: IncidentShelf) -> None:
    files = {
        "incident.json": DOCUMENT,
        "steps.jsonl": b'{"step": 1}\nnonsense\n{"step": 2}\n',
        "requests.jsonl": b"",
        "processes.json": b'[{"role": "x"}]',
        "stacks/Worker_TP0.txt": b"File",
        "logs/APIServer_0.log": b"one\ntwo\n",
    }
    assert shelf.add(NAME, files, lambda folder: (folder / "recording").write_bytes(b"r") and None) == NAME
    folder = shelf.path / NAME
    assert (folder / "recording").read_bytes() == b"r"
    assert read_incident(shelf, NAME) == {
        "incident": {"name": NAME},
        "folder": str(folder),
        "steps": [{"step": 1}, {"step": 2}],
        "open_requests": [],
        "processes": [{"role": "x"}],
        "stacks": {"Worker_TP0": "File"},
        "logs": {"APIServer_0": ["one", "two"]},
    }
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (shelf.path, folder, folder / "logs")}
    assert modes == {0o700}
    assert stat.S_IMODE((folder / "incident.json").stat().st_mode) == 0o600


def test_one_that_cannot_be_written_leaves_nothing(shelf: IncidentShelf) -> None:
    def fail(folder: Path) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        shelf.add(NAME, {"incident.json": DOCUMENT}, fail)
    assert list(shelf.path.iterdir()) == []
    assert shelf.names() == []


def test_a_document_is_replaced_whole_or_not_at_all(shelf: IncidentShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add(NAME, {"incident.json": DOCUMENT})
    shelf.rewrite(NAME, b'{"name": "y"}')
    assert shelf.read(NAME) == {"name": "y"}
    monkeypatch.setattr(Path, "replace", _no_room)
    with pytest.raises(OSError, match="no room"):
        shelf.rewrite(NAME, DOCUMENT)
    assert [path.name for path in (shelf.path / NAME).iterdir()] == ["incident.json"]
    with pytest.raises(FileNotFoundError):
        shelf.rewrite(f"{NAME}-2", DOCUMENT)
    assert shelf.names() == [NAME]


def _no_room(path: Path, target: Path) -> Path:
    raise OSError("no room")


def test_two_of_a_second_have_names_of_their_own_and_a_file_is_cut(shelf: IncidentShelf) -> None:
    names = [shelf.add(NAME, {"incident.json": DOCUMENT, "x": b"x" * (MAX_FILE_BYTES + 5)}) for _ in range(3)]
    assert names == [NAME, f"{NAME}-2", f"{NAME}-3"]
    assert (shelf.path / NAME / "x").stat().st_size == MAX_FILE_BYTES


def test_of_too_many_the_oldest_of_the_most_frequent_kind_goes(shelf: IncidentShelf) -> None:
    rare = [f"2026010{number}-000000-crashed-Worker_TP0" for number in (1, 2)]
    often = [f"20260201-0000{number:02d}-killed-Observer" for number in range(MAX_INCIDENTS)]
    for name in [*rare, *often]:
        shelf.add(name, {"incident.json": DOCUMENT})
    assert shelf.names() == [*rare, *often[2:]]


@pytest.mark.parametrize("name", ["..", "20260101-000000-killed-../x", "x", "", f"{NAME}/../{NAME}"])
def test_what_is_no_name_is_not_looked_up(shelf: IncidentShelf, name: str) -> None:
    shelf.add(NAME, {"incident.json": DOCUMENT})
    assert shelf.read(name) is None
    assert read_incident(shelf, name) is None


def test_a_document_that_is_damaged_is_passed_over(shelf: IncidentShelf) -> None:
    assert shelf.documents() == []
    shelf.add(NAME, {"incident.json": b"{"})
    shelf.add(NAME, {"incident.json": b"[]"})
    assert shelf.documents() == []
