"""The waterfall of a start as text: a line for each phase, and a bar of when it was."""

from collections.abc import Iterator, Sequence
from typing import Any

NS = 1e9
WIDTH = 48
MIN_GAP_SECONDS = 0.001
NOTABLE_READ_BYTES = 1_000_000

Row = dict[str, Any]
Span = tuple[int, int]


def waterfall_lines(view: Row) -> Iterator[str]:
    """The sentence, the processes in the order they were started, and hints."""
    yield view["says"]
    run = view["run"]
    first, last = _span(view)
    for process in view["processes"]:
        if process["is_later"]:
            continue
        yield ""
        yield from _process_lines(process, run, first, last)
    later = [process for process in view["processes"] if process["is_later"]]
    if later:
        yield from ("", "Started later:")
    for process in later:
        yield ""
        yield from _process_lines(process, run, process["begun_at"], _end_of(process))
    if run["accounted"] is not None:
        yield ""
        yield f"{100 * run['accounted']:.2f} % of the time to ready is accounted for."
    yield from view["hints"]


def _process_lines(process: Row, run: Row, first: int, last: int) -> Iterator[str]:
    accounted = f"{100 * process['accounted']:.2f} % accounted"
    state = "" if process["ready_at"] else ", never ready" if process["state"] == "exited" else ", not ready yet"
    yield f"{process['role']} (pid {process['pid']}): {process['seconds']:.3f} s, {accounted}{state}"
    hung = [
        (segment["begun_at"], segment["ended_at"])
        for segment in run["critical_path"]
        if segment["pid"] == process["pid"]
    ]
    for phase in process["phases"]:
        bar = span_bar((phase["begun_at"], phase["ended_at"]), hung, (first, last))
        name = "  " * phase["depth"] + phase["phase"]
        length = f"{phase['seconds']:>8.3f} s {100 * phase['share']:>5.1f} %"
        yield f"  {name:<26} {length}  {bar:<{WIDTH}}{_notes(phase)}".rstrip()
    gaps = process["unaccounted_seconds"]
    if gaps >= MIN_GAP_SECONDS:
        yield f"  {'unaccounted':<26} {gaps:>8.3f} s {100 * gaps / max(process['seconds'], 1e-9):>5.1f} %"


def span_bar(span: Span, hung: Sequence[Span], over: Span) -> str:
    """When a span was, within what the whole bar stands for: █ where being ready `hung` on it, ░ where not."""
    first, last = over
    cell = max(1, last - first) / WIDTH
    begin = min(WIDTH - 1, int((span[0] - first) / cell))
    end = max(begin + 1, min(WIDTH, round((span[1] - first) / cell)))
    marks = (_mark(first + (number + 0.5) * cell, span, hung, cell) for number in range(begin, end))
    return " " * begin + "".join(marks)


def _mark(moment: float, span: Span, hung: Sequence[Span], cell: float) -> str:
    """By the middle of the cell; a span shorter than that by its own."""
    if span[1] - span[0] < cell:
        moment = (span[0] + span[1]) / 2
    return "█" if any(begun_at <= moment < ended_at for begun_at, ended_at in hung) else "░"


def _notes(phase: Row) -> str:
    """CPU time where it is known, and what came from storage."""
    cpu = f"  cpu {phase['cpu_seconds']:.2f} s" if phase["cpu_seconds"] >= 0.005 else ""
    read = phase["num_read_bytes"]
    return cpu + (f", {read / 1e6:.0f} MB from storage" if read >= NOTABLE_READ_BYTES else "")


def _span(view: Row) -> tuple[int, int]:
    """What the bars are drawn over: all of the run's own start."""
    own = [process for process in view["processes"] if not process["is_later"]]
    return min((each["begun_at"] for each in own), default=0), max((_end_of(each) for each in own), default=1)


def _end_of(process: Row) -> int:
    return int(process["begun_at"] + process["seconds"] * NS)
