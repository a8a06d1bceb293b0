"""ProfileBook: the run's profiles, by what the processes that take part have recorded of them."""

from collections import OrderedDict
from typing import Any, NamedTuple

from vllm_obs.telemetry.process_roles import CORE, WORKER, engine_of_role
from vllm_obs.telemetry.records import ProcessExited, ProfileBegun, ProfileEnded, Record
from vllm_obs.telemetry.view import BaseView, Source

MAX_PROFILES = 32
MAX_PARTS = 256
"""Processes that take part in one."""
LOST_SECONDS = 180.0
"""So long after its time is up a part that has not ended is not waited for any more: its process is gone."""
NS = 1e9

RUNNING, WRITTEN, FAILED, LOST = "running", "written", "failed", "lost"
"""What a profile can be; it runs until all its files are written."""


class Part(NamedTuple):
    """One process's part: how it began (None if it never did), and how it ended (None while it goes on)."""

    begun: ProfileBegun | None = None
    ended: ProfileEnded | None = None


class Profile:
    """One profile of all processes."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.parts: dict[tuple[str, int], Part] = {}

    @property
    def begun_at(self) -> int:
        """When the first process began (monotonic ns); 0 if none has."""
        return min((part.begun.begun_at for part in self.parts.values() if part.begun), default=0)

    @property
    def is_over(self) -> bool:
        """Whether every process that began has ended, with its files written."""
        return bool(self.parts) and all(part.ended for part in self.parts.values())

    @property
    def errors(self) -> list[str]:
        """Why parts have no files."""
        return [part.ended.error for part in self.parts.values() if part.ended and part.ended.error]

    def state(self, now: int) -> str:
        """In a word."""
        if self.is_over:
            return FAILED if len(self.errors) == len(self.parts) else WRITTEN
        return LOST if now > self._due_at() else RUNNING

    def process_exited(self, exited: ProcessExited) -> None:
        """A process is gone, and with an engine its workers: their parts will not end in order any more."""
        for (role, pid), (begun, ended) in self.parts.items():
            is_gone = (role, pid) == (exited.role, exited.pid) or (
                role.startswith(WORKER)
                and exited.role.startswith(CORE)
                and engine_of_role(role) == engine_of_role(exited.role)
            )
            if is_gone and begun is not None and ended is None:
                at, words = exited.exited_at, "its process ended first"
                end = ProfileEnded(self.name, self.kind, role, pid, begun.rank, 0, 0, at, at, [], words)
                self.parts[role, pid] = Part(begun, end)

    def shown(self, now: int) -> dict[str, Any]:
        """Plain values."""
        begun = [part.begun for part in self.parts.values() if part.begun]
        return {
            "profile": self.name,
            "kind": self.kind,
            "state": self.state(now),
            "begun_at": self.begun_at or None,
            "max_seconds": max((one.max_seconds for one in begun), default=None),
            "max_steps": max((one.max_steps for one in begun), default=None),
            "parts": [_shown_part(*key, part) for key, part in self.parts.items()],
        }

    def _due_at(self) -> int:
        begun = [part.begun for part in self.parts.values() if part.begun]
        return max((one.begun_at + int((one.max_seconds + LOST_SECONDS) * NS) for one in begun), default=0)


class ProfileBook(BaseView):
    """The last profiles, newest last."""

    record_kinds = (ProfileBegun, ProfileEnded, ProcessExited)

    def __init__(self) -> None:
        self.profiles: OrderedDict[str, Profile] = OrderedDict()

    def record(self, source: Source, record: Record) -> None:
        """Take note of a begin or an end."""
        if isinstance(record, ProcessExited):
            for each in self.profiles.values():
                each.process_exited(record)
        if not isinstance(record, ProfileBegun | ProfileEnded):
            return
        profile = self.profiles.get(record.profile)
        if profile is None:
            profile = self.profiles[record.profile] = Profile(record.profile, record.kind)
            if len(self.profiles) > MAX_PROFILES:
                self.profiles.popitem(last=False)
        key = (record.role, record.pid)
        part = profile.parts.get(key, Part())
        if key not in profile.parts and len(profile.parts) >= MAX_PARTS:
            return
        if isinstance(record, ProfileBegun):
            profile.parts[key] = part._replace(begun=record)
        else:
            profile.parts[key] = part._replace(ended=record)

    def under_way(self, now: int) -> Profile | None:
        """The profile that is running, if any."""
        running = (profile for profile in reversed(self.profiles.values()) if profile.state(now) == RUNNING)
        return next(running, None)


def _shown_part(role: str, pid: int, part: Part) -> dict[str, Any]:
    ended = part.ended
    return {
        "role": role,
        "pid": pid,
        "num_steps": ended.num_steps if ended else None,
        "num_samples": ended.num_samples if ended else None,
        "ended_at": ended.ended_at if ended else None,
        "written_at": ended.written_at if ended else None,
        "error": ended.error if ended else "",
    }
