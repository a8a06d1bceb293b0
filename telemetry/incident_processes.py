"""What each process of a run was doing when an incident happened, by its ring's header and what was seen of it."""

from collections.abc import Callable
from typing import Any

from vllm_obs.telemetry.death_watch import SeenRing
from vllm_obs.telemetry.incident_finding import Finding
from vllm_obs.telemetry.incident_stall import STOPPED_STATES
from vllm_obs.telemetry.memory_limits import MemoryLimits
from vllm_obs.telemetry.process_roles import rank_of
from vllm_obs.telemetry.process_table import ProcessTable
from vllm_obs.telemetry.ring_header import RingHeader

Row = dict[str, Any]


def process_rows(
    table: ProcessTable,
    finding: Finding,
    rings: list[SeenRing],
    memory_of: Callable[[int], MemoryLimits | None] = lambda pid: None,
) -> list[Row]:
    """A row for each ring, in the order in which they were made."""
    ends = {end.key: end for end in finding.ends}
    rows: list[Row] = []
    for header, is_alive in sorted(rings, key=lambda ring: ring.header.started_at):
        end, known = ends.get((header.role, header.pid)), table.get(header.role, header.pid)
        exit_code = end.exit_code if end is not None else known.exit_code if known is not None else None
        memory = end.memory if end is not None else None
        if memory is None and not header.host:
            memory = memory_of(header.pid)
        kernel_state = _kernel_state(finding, header)
        state = "alive" if is_alive else "ended" if header.closed_at else "died"
        rows.append(
            _header_row(header, finding.happened_at)
            | {"rank": rank_in(rings, header.role)}
            | {
                "state": "stopped" if is_alive and kernel_state in STOPPED_STATES else state,
                "process_state": kernel_state or None,
                "exit_code": exit_code,
                "memory": memory._asdict() if memory is not None else None,
            }
        )
    return rows


def rank_in(rings: list[SeenRing], role: str) -> int:
    """The rank of a worker among those of a run; -1 for what is no worker."""
    return rank_of(role, [ring.header.role for ring in rings])


def _kernel_state(finding: Finding, header: RingHeader) -> str:
    """The kernel's letter for the process that holds an engine up; of the others nobody asked."""
    stall = finding.stall
    return (
        stall.process_state if stall is not None and (stall.role, stall.pid) == (header.role, header.pid) else ""
    )


def _header_row(header: RingHeader, at: int) -> Row:
    return {
        "role": header.role,
        "pid": header.pid,
        "host": header.host,
        "started_at": header.started_at,
        "closed_at": header.closed_at or None,
        "activity": header.activity.label,
        "activity_at": header.activity_at,
        "activity_ns": max(0, at - header.activity_at),
        "step": header.step,
        "progress": header.progress,
        "heartbeat_at": header.heartbeat_at,
    }
