"""Finding: what happened, as far as it could be found out; one incident is made of one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.death_cause import Cause, DeathCause, cause_of_end, is_lack_of_memory
from vllm_obs.telemetry.death_watch import End, SeenRing
from vllm_obs.telemetry.incident_culprit import Judgement
from vllm_obs.telemetry.process_roles import (
    API_SERVER,
    FIRST_ENGINE,
    LAUNCHER,
    OF_ENGINES,
    engine_of_role,
    parse_role,
)
from vllm_obs.telemetry.records import StallBegun, StepFailed
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.view import Source


class FailedStep(NamedTuple):
    """A step that broke off, and whose."""

    source: Source
    record: StepFailed

    @property
    def engine(self) -> str:
        """Its engine's label."""
        return self.source.engine or FIRST_ENGINE

    @property
    def error_type(self) -> str:
        """The exception's type; its words stay inside."""
        return self.record.error.partition(":")[0]


@dataclass(frozen=True)
class Finding:
    """A cause, who it was, and what followed. `happened_at` is monotonic ns.

    One of `death` (with `end`), `stall` and `failed` says more about the first cause.
    """

    cause: Cause
    role: str
    pid: int
    happened_at: int
    death: DeathCause | None = None
    end: End | None = None
    others: list[End] = field(default_factory=list)
    failed: list[FailedStep] = field(default_factory=list)
    stall: StallBegun | None = None
    stacks: dict[str, str] = field(default_factory=dict)

    @property
    def begun_at(self) -> int:
        """When it began, which of a stall is before anybody noticed (monotonic ns)."""
        return self.stall.stuck_at if self.stall is not None else self.happened_at

    @property
    def engine(self) -> str:
        """The label of the engine that it is about; empty where it is about all of them, or none."""
        if self.stall is not None:
            return self.stall.engine
        kinds = {parse_role(end.role).kind for end in self.ends}
        if not kinds.isdisjoint((API_SERVER, LAUNCHER)):
            return ""
        roles = [end.role for end in self.ends if parse_role(end.role).kind in OF_ENGINES]
        labels = {engine_of_role(role) for role in roles} or {each.engine for each in self.failed}
        return labels.pop() if len(labels) == 1 else ""

    @property
    def is_of_servers(self) -> bool:
        """Whether API servers ended and nobody else: their owner saw it, and lives on, so others may serve."""
        return bool(self.ends) and all(
            parse_role(end.role).kind == API_SERVER and end.is_recorded for end in self.ends
        )

    @property
    def ends(self) -> list[End]:
        """Every process that ended in it, the first cause first."""
        return [self.end, *self.others] if self.end is not None else list(self.others)

    @property
    def keys(self) -> list[str]:
        """What it is about, in words that tell whether an incident of it was filed before."""
        keys = [f"end {end.role} {end.pid}" for end in self.ends]
        keys += [f"step {failed.source.role} {failed.source.pid} {failed.record.step}" for failed in self.failed]
        return keys + ([f"stall {self.stall.role} {self.stall.pid} {self.stall.stuck_at}"] if self.stall else [])


def finding_of_death(
    judgement: Judgement, failed: list[FailedStep], run_dir: Path, rings: list[SeenRing]
) -> Finding:
    """A process died; steps that had failed just before led to it, and then it began with the first of them."""
    end = judgement.first
    header = header_of(rings, end.role, end.pid)
    death = cause_of_end(end, run_dir, header.wall_at if header is not None else 0)
    happened_at = min([end.ended_at, *(step.record.failed_at for step in failed)])
    return Finding(death.cause, end.role, end.pid, happened_at, death, end, judgement.others, failed)


def finding_of_steps(failed: list[FailedStep]) -> Finding:
    """Steps failed in an engine that goes on."""
    first = failed[0]
    cause: Cause = "out_of_memory" if is_lack_of_memory(first.record.error) else "step_failed"
    return Finding(cause, first.source.role, first.source.pid, first.record.failed_at, failed=failed)


def finding_of_stall(stall: StallBegun, stacks: dict[str, str]) -> Finding:
    """An engine stands still, or a process in it is stopped."""
    return Finding("stalled", stall.role, stall.pid, stall.noticed_at, stall=stall, stacks=stacks)


def header_of(rings: list[SeenRing], role: str, pid: int) -> RingHeader | None:
    """What a process's ring says of it."""
    return next((ring.header for ring in rings if (ring.header.role, ring.header.pid) == (role, pid)), None)
