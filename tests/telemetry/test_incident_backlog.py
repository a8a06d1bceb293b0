"""Incidents that cannot be written wait, a few, and so do changes to those that are written."""

import errno
from pathlib import Path

import pytest

from vllm_obs.telemetry.incident_backlog import MAX_WAITING, RETRY_NS, IncidentBacklog
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_story import Scene, Story
from vllm_obs.telemetry.observer import Observer

NAME = "20260101-000000-stalled-EngineCore_DP0"
STORY = Story(NAME, {"says": "It stands."}, {})


class Disk:
    """A shelf's disk that may be full."""

    is_full = False

    def write(self, shelf: IncidentShelf, story: Story, scene: Scene) -> str:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return shelf.add(story.name, {"incident.json": b"{}"})


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def backlog(tmp_path: Path, disk: Disk) -> IncidentBacklog:
    return IncidentBacklog(IncidentShelf(tmp_path), disk.write)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Observer("run", tmp_path), tmp_path, [])


def test_names_of_one_second_differ_wherever_they_are(backlog: IncidentBacklog, disk: Disk, scene: Scene) -> None:
    found = [backlog.file(STORY, scene)]
    disk.is_full = True
    found += [backlog.file(STORY, scene) for _ in range(2)]
    assert [(document["name"], is_written) for document, is_written in found] == [
        (NAME, True),
        (f"{NAME}-2", False),
        (f"{NAME}-3", False),
    ]
    disk.is_full = False
    assert [document["name"] for document in backlog.retry(RETRY_NS)] == [f"{NAME}-2", f"{NAME}-3"]
    assert len(backlog) == 0


def test_only_so_many_wait(backlog: IncidentBacklog, disk: Disk, scene: Scene) -> None:
    disk.is_full = True
    for _ in range(MAX_WAITING + 3):
        backlog.file(STORY, scene)
    assert len(backlog) == MAX_WAITING


def test_a_change_that_cannot_be_written_waits(
    backlog: IncidentBacklog, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, _ = backlog.file(STORY, scene)
    with monkeypatch.context() as full:
        full.setattr(IncidentShelf, "rewrite", _no_room)
        assert backlog.amend({**document, "says": "It stood."})
        assert backlog.retry(RETRY_NS) == []
    assert backlog.document(NAME) == {"name": NAME, "says": "It stood."}
    assert IncidentShelf(tmp_path).read(NAME) == {}
    backlog.retry(2 * RETRY_NS)
    assert IncidentShelf(tmp_path).read(NAME) == {"name": NAME, "says": "It stood."}
    assert len(backlog) == 0


def test_a_change_of_what_is_gone_is_forgotten(backlog: IncidentBacklog) -> None:
    assert backlog.amend({"name": NAME})
    assert len(backlog) == 0


def _no_room(shelf: IncidentShelf, name: str, document: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
