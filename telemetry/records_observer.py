"""Facts of what is traced, profiled, stalled or broken: orders in force and what the Observer found."""

from typing import NamedTuple


class TelemetrySet(NamedTuple):
    """API server: detail level (0 to 3) and trace sample rate in force from `set_at` on."""

    detail_level: int
    sample_rate: float
    set_at: int


class ProfileBegun(NamedTuple):
    """A capture began in this process: `kind` is operators (the worker's torch profile) or samples (of stacks).

    `profile` is the capture's name, the same in all processes that take part. The bounds are those it was given.
    """

    profile: str
    kind: str
    role: str
    pid: int
    rank: int
    max_steps: int
    max_seconds: float
    begun_at: int


class ProfileEnded(NamedTuple):
    """A capture is over and its files are written; `error` says why there are none."""

    profile: str
    kind: str
    role: str
    pid: int
    rank: int
    num_steps: int
    num_samples: int
    ended_at: int
    written_at: int
    files: list[str]
    error: str


class StallBegun(NamedTuple):
    """Observer: an engine has work and has not moved since `stuck_at`; without one an API server or the launcher.

    `role` and `pid` are the process that holds it up (`rank` is -1 where it is no worker), `activity` what that
    process says it does, in step `step`; `process_state` is the kernel's letter for it (T is stopped).
    """

    engine: str
    role: str
    pid: int
    rank: int
    activity: str
    step: int
    process_state: str
    says: str
    stuck_at: int
    noticed_at: int


class StallEnded(NamedTuple):
    """Observer: the engine moves again, or its process is gone."""

    engine: str
    role: str
    pid: int
    stuck_at: int
    ended_at: int


class IncidentFiled(NamedTuple):
    """Observer: an incident was written down. `cause` is from a closed set, `says` one sentence for people.

    Recorded again under its name when it is over. `filed_at` is 0 while the disk has no room for it.
    """

    incident: str
    cause: str
    role: str
    pid: int
    says: str
    happened_at: int
    filed_at: int
