"""The inspector's view of processes: who runs, and what each does right now."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.process_table import ProcessFacts, ProcessTable
from vllm_obs.telemetry.recent_rates import RecentRates
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingReader

NS = 1e9

Row = dict[str, Any]


def processes_view(table: ProcessTable, run_dir: Path | None, now: int, rates: RecentRates) -> list[Row]:
    """The rows with what takes more than one look, or more than one row, to know.

    Over the last 10 s: `cpu_share` in cores, and `ring_turn_seconds`, how soon the ring is written over at that
    rate. `num_starts` counts the processes of its role that are known.
    """
    rows = process_rows(table, run_dir, now)
    starts = Counter(row["role"] for row in rows)
    for row in rows:
        row["num_starts"] = starts[row["role"]]
        if row["started_at"] is not None:
            row["uptime_seconds"] = max(0, (row["exited_at"] or now) - row["started_at"]) / NS
        who = (row["pid"], row["started_at"])
        if row["cpu_seconds"] is not None:
            row["cpu_share"] = rates.look((*who, "cpu"), row["cpu_seconds"], now)
        if row["heartbeat_age_seconds"] is not None:
            rate = rates.look((*who, "ring"), row["ring_written_bytes"], now)
            row["ring_turn_seconds"] = row["ring_bytes"] / rate if rate else None
    return rows


def process_rows(table: ProcessTable, run_dir: Path | None, now: int) -> list[Row]:
    """Every process of the run that is known, oldest first; of a recording what it holds of them.

    `state` is starting, ready, exited (in order, or its owner saw its end) or gone (killed, and nobody said).
    `host` is empty for this one; of processes elsewhere their kernel's figures are not known.
    """
    rows: dict[tuple[str, int], Row] = {}
    for process in table.all():
        rows[process.role, process.pid] = _blank(process)
    for header, name, is_alive in _headers(run_dir):
        blank = _blank(ProcessFacts(header.role, header.pid, started_at=header.started_at, host=header.host))
        _put_header(rows.setdefault((header.role, header.pid), blank), header, name, is_alive, now)
    for row in rows.values():
        if run_dir is not None and row["state"] in ("starting", "ready") and not row["host"]:
            _put_resources(row)
    return sorted(rows.values(), key=lambda row: row["started_at"] or 0)


def _blank(process: ProcessFacts) -> Row:
    return {
        "role": process.role,
        "pid": process.pid,
        "host": process.host,
        "parent_pid": None,
        "title": "",
        "state": process.state,
        "started_at": process.started_at or None,
        "ready_at": process.ready_at or None,
        "exited_at": process.exited_at or None,
        "exit_code": process.exit_code,
        "activity": "unknown",
        "activity_seconds": None,
        "heartbeat_age_seconds": None,
        "step": None,
        "progress": None,
        "num_records": None,
        "num_dropped_records": None,
        "ring": "",
        "ring_bytes": None,
        "ring_written_bytes": None,
        "ring_turn_seconds": None,
        "kernel_state": None,
        "uptime_seconds": None,
        "num_starts": 1,
        "cpu_seconds": None,
        "cpu_share": None,
        "rss_bytes": None,
        "num_threads": None,
        "num_fds": None,
    }


def _headers(run_dir: Path | None) -> Iterator[tuple[RingHeader, str, bool]]:
    for path in sorted(run_dir.glob("*.ring")) if run_dir else ():
        try:
            with RingReader(path) as reader:
                yield reader.header(), path.name, reader.is_writer_alive()
        except (RingError, OSError):
            continue


def _put_header(row: Row, header: RingHeader, name: str, is_alive: bool, now: int) -> None:
    if not is_alive and header.closed_at:
        row |= {"state": "exited", "exited_at": row["exited_at"] or header.closed_at}
    elif not is_alive and row["exited_at"] is None:
        row["state"] = "gone"
    elif is_alive and header.host and row["exited_at"] is None:  # the connection to its host came back
        row["state"] = "ready" if row["ready_at"] else "starting"
    num_dropped = header.num_unencodable + header.num_oversized
    row |= {
        "host": header.host,
        "started_at": row["started_at"] or header.started_at,
        "activity": header.activity.label,
        "activity_seconds": max(0, now - header.activity_at) / NS,
        "heartbeat_age_seconds": max(0, now - header.heartbeat_at) / NS if is_alive else None,
        "step": header.step,
        "progress": header.progress,
        "num_records": header.sequence - num_dropped,
        "num_dropped_records": num_dropped,
        "ring": name,
        "ring_bytes": header.capacity,
        "ring_written_bytes": header.cursor,
    }


def _put_resources(row: Row) -> None:
    """What the kernel says of a process that lives."""
    import psutil  # not at every start of an Observer

    try:
        process = psutil.Process(row["pid"])
        with process.oneshot():
            times = process.cpu_times()
            row |= {
                "parent_pid": process.ppid(),
                "title": " ".join(process.cmdline())[:120].strip(),
                "cpu_seconds": times.user + times.system,
                "rss_bytes": process.memory_info().rss,
                "num_threads": process.num_threads(),
                "num_fds": process.num_fds(),
                "kernel_state": process.status(),
            }
    except psutil.Error:
        row["state"] = "gone"
