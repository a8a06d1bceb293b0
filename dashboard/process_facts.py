"""What is said of a process: how it is called, how well it is and why, and how it ended."""

import signal
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from vllm_obs.dashboard.figures import NOTHING, number, seconds
from vllm_obs.telemetry import process_roles

OLD_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""A heartbeat older than this is a warning; than this, as good as none."""
RESTING = frozenset({"waiting", "paused"})
"""Who does this has no reason for a heartbeat."""
ENDED = frozenset({"exited", "gone"})
_STOPPED = frozenset({"stopped", "tracing-stop"})
_STOPPED_LETTERS = frozenset({"T", "t"})
_HELD_UP = frozenset({"EngineCore", "Worker"})
"""Who waits for the others of its engine in every step."""
_NAMES = {"APIServer": "API server", "EngineCore": "Engine core", "Worker": "Worker"}

Row = dict[str, Any]

_UNTOLD: Row = {
    "kernel_state": None,
    "cpu_share": None,
    "num_fds": None,
    "uptime_seconds": None,
    "num_starts": 0,
    "ring_bytes": None,
    "ring_turn_seconds": None,
    "host": "",
}
"""What an Observer of an older version does not tell."""


class Condition(NamedTuple):
    """`level` is one of the palette's; `words` say what is wrong, empty where nothing is."""

    level: str
    words: str = ""


class Tree(NamedTuple):
    """The run's processes in their places; `engines` have their workers with them, `ended` are newest first.

    `roots` is the launcher, where several API servers have one. The last of a role stays in its place though it
    ended, so that a hole is seen.
    """

    roots: list[Row]
    servers: list[Row]
    engines: list[tuple[Row | None, list[Row]]]
    beside: list[Row]
    ended: list[Row]


def tree_of(rows: Iterable[Row]) -> Tree:
    """Put the rows of /inspect/processes in their places, by role."""
    newest: dict[str, Row] = {}
    ended: list[Row] = []
    for row in ({**_UNTOLD, **row} for row in rows):
        before = newest.get(row["role"])
        if before is not None:
            ended.append(before)
        newest[row["role"]] = row
    ended += [row for row in newest.values() if row["state"] in ENDED]
    here = sorted(newest.values(), key=lambda row: _place(row["role"]))
    cores = {engine_of(row["role"]): row for row in here if kind_of(row["role"]) == "EngineCore"}
    workers = [row for row in here if kind_of(row["role"]) == "Worker"]
    labels = sorted({*cores, *(engine_of(row["role"]) for row in workers)})
    return Tree(
        roots=[row for row in here if kind_of(row["role"]) == process_roles.LAUNCHER],
        servers=[row for row in here if kind_of(row["role"]) == "APIServer"],
        engines=[
            (cores.get(label), [row for row in workers if engine_of(row["role"]) == label]) for label in labels
        ],
        beside=[row for row in here if kind_of(row["role"]) not in (*_NAMES, process_roles.LAUNCHER)],
        ended=sorted(ended, key=lambda row: row["exited_at"] or row["started_at"] or 0, reverse=True),
    )


def condition(row: Row, stalls: Sequence[Row]) -> Condition:
    """How well it is; `stalls` are those that the watchdog sees now, each with the process that it blames."""
    if row["state"] in ENDED:
        return Condition("unknown" if row["exit_code"] == 0 else "bad", how_ended(row))
    blamed = next((stall for stall in stalls if (stall["role"], stall["pid"]) == (row["role"], row["pid"])), None)
    if row["kernel_state"] in _STOPPED or (blamed is not None and blamed["process_state"] in _STOPPED_LETTERS):
        return Condition("bad", f"stopped by a signal, {_while(row)}")
    if blamed is not None:
        return Condition("bad", f"stands still, {_while(row)}")
    if row["state"] == "starting":
        return Condition("unknown", "not ready yet")
    age = row["heartbeat_age_seconds"]
    if age is not None and age > OLD_SECONDS and row["activity"] not in RESTING:
        engine = process_roles.engine_of_role(row["role"])
        holds_up = [stall["role"] for stall in stalls if process_roles.engine_of_role(stall["role"]) == engine]
        if holds_up and kind_of(row["role"]) in _HELD_UP:
            return Condition("warning", f"held up by {name_of(holds_up[0])} for {seconds(age)}")
        return Condition("bad" if age > SILENT_SECONDS else "warning", f"no heartbeat for {seconds(age)}")
    return Condition("good")


def _while(row: Row) -> str:
    return f"{activity(row)} for {seconds(row['activity_seconds'])}"


def how_ended(row: Row) -> str:
    """In words: in order, by which signal, with which code; or that nobody saw it."""
    code = row["exit_code"]
    if code is None:
        return "ended in order" if row["state"] == "exited" else "killed: nobody saw how"
    if code < 0:
        return f"ended by {signal_name(-code)}"
    return "ended in order" if code == 0 else f"ended with exit code {code}"


def signal_name(code: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(code).name
    except ValueError:
        return f"signal {code}"


def activity(row: Row) -> str:
    """What it does, as a word people read."""
    return str(row["activity"]).replace("_", " ")


def name_of(role: str) -> str:
    """A role as people call it: Worker TP1."""
    kind, _, rank = role.partition("_")
    return f"{_NAMES.get(kind, kind)} {rank.replace('_', ' ')}".strip()


def kind_of(role: str) -> str:
    """Worker of Worker_TP1."""
    return role.partition("_")[0]


def engine_of(role: str) -> str:
    """The label of the engine that a core or worker belongs to; 0 where its role names none."""
    return process_roles.engine_of_role(role) or process_roles.FIRST_ENGINE


def rank_of(role: str, roles: Iterable[str] = ()) -> int | None:
    """The number of a worker within its engine, whose other workers are among these roles."""
    rank = process_roles.rank_of(role, roles)
    return rank if rank >= 0 else None


def hosts_of(rows: Iterable[Row]) -> list[str]:
    """The other hosts that processes run on."""
    return sorted({row["host"] for row in rows if row.get("host")})


def restarts(row: Row) -> str:
    """How often its role was started again."""
    return number(row["num_starts"] - 1) if row["num_starts"] else NOTHING


def _place(role: str) -> tuple[str, tuple[int, ...], str]:
    """By kind, then by engine, stage and shard, or by number."""
    found = process_roles.parse_role(role)
    digits = "".join(letter for letter in role.partition("_")[2] if letter.isdecimal())
    place = (int(found.engine), found.stage, found.shard) if found.engine else (int(digits or 0),)
    return kind_of(role), place, role
