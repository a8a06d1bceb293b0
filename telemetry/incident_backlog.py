"""IncidentBacklog: writes incidents down, and keeps those for which the disk has no room until it has."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_story import Scene, Story, file_story

MAX_WAITING = 8
"""Incidents in memory; the first causes are kept, what comes later is told in the log only."""
RETRY_NS = 5_000_000_000

Document = dict[str, Any]
Write = Callable[[IncidentShelf, Story, Scene], str]

_logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    story: Story
    scene: Scene


class IncidentBacklog:
    """In front of a shelf. Nothing here raises OSError; `write` puts a story on the shelf."""

    def __init__(self, shelf: IncidentShelf, write: Write = file_story) -> None:
        self._shelf = shelf
        self._write = write
        self._waiting: dict[str, _Waiting] = {}
        self._amended: dict[str, Document] = {}
        """Documents that are on the shelf as they were before."""
        self._tried_at = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._amended)

    def file(self, story: Story, scene: Scene) -> tuple[Document, bool]:
        """Write an incident down under a free name, or keep it; its document, and whether it is written."""
        name = self._shelf.free_name(story.name, self._waiting)
        story = replace(story, name=name, document={**story.document, "name": name})
        error = self._try(story, scene)
        if error is None:
            return story.document, True
        if len(self._waiting) < MAX_WAITING:
            self._waiting[name] = _Waiting(story, scene)
            fate = "it is kept in memory until that is possible"
        else:
            fate = f"{MAX_WAITING} are kept in memory already, and this one is not"
        reason = error.strerror or error
        _logger.warning(
            "incident %s: %s (it cannot be written: %s; %s)", name, story.document["says"], reason, fate
        )
        return story.document, False

    def document(self, name: str) -> Document | None:
        """An incident's document as it is now, wherever it is."""
        if (waiting := self._waiting.get(name)) is not None:
            return waiting.story.document
        return self._amended.get(name) or self._shelf.read(name)

    def amend(self, document: Document) -> bool:
        """Put another document in the place of the one of that name; whether the incident is written."""
        name = document["name"]
        if (waiting := self._waiting.get(name)) is not None:
            self._waiting[name] = waiting._replace(story=replace(waiting.story, document=document))
            return False
        if not self._rewrite(document) and len(self._amended) < MAX_WAITING:
            self._amended[name] = document
        return True

    def retry(self, now: int, is_last: bool = False) -> list[Document]:
        """Try again what waits, every RETRY_NS; the documents of the incidents that were written now."""
        if not self or (now - self._tried_at < RETRY_NS and not is_last):
            return []
        self._tried_at = now
        for name in [name for name, document in self._amended.items() if self._rewrite(document)]:
            del self._amended[name]
        written: list[Document] = []
        for name, waiting in list(self._waiting.items()):
            if self._try(*waiting) is not None:
                break
            del self._waiting[name]
            written.append(waiting.story.document)
            _logger.warning("incident %s has been written now", name)
        return written

    def _try(self, story: Story, scene: Scene) -> OSError | None:
        try:
            self._write(self._shelf, story, scene)
        except OSError as error:
            return error
        return None

    def _rewrite(self, document: Document) -> bool:
        try:
            self._shelf.rewrite(document["name"], json.dumps(document, indent=2, default=str).encode() + b"\n")
        except FileNotFoundError:
            return True  # pruned meanwhile
        except OSError:
            return False
        return True
