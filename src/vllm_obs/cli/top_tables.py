"""The tables of `vllm-obs top`, of as many lines as there is room for: requests and processes."""

import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from vllm_obs.cli.top_cells import DIM, RED, RESET, age, megabytes, number, short

MAX_PROCESSES = 10
WIDE_COLUMNS, LABEL_COLUMNS = 108, 136
"""From these widths on a request's state, and its label beside its id, have a column of their own."""
_LIVING = ("starting", "ready")
_WAITING = ("submitted", "waiting", "preempted")

Row = dict[str, Any]


class _Column(NamedTuple):
    """A column's head and width; those of numbers are right-aligned."""

    head: str
    width: int
    is_number: bool = False


_NARROW = (
    _Column("request", 28),
    _Column("stage", 24),
    _Column("age", 7, True),
    _Column("prompt", 7, True),
    _Column("output", 7, True),
    _Column("last", 7, True),
)
_WIDE = (
    _Column("request", 36),
    _Column("state", 11),
    _Column("stage", 24),
    _Column("age", 9, True),
    _Column("prompt", 8, True),
    _Column("output", 8, True),
    _Column("last token", 12, True),
)
_LABEL = _Column("label", 28)


def request_table(requests: list[Row], num_live: int, columns: int, room: int) -> Iterator[str]:
    """The head, rows, and how many more there are, in `room` lines at most."""
    cells = _cells_of(columns)
    yield f"{DIM}{''.join(_put(column.head, column) for column in cells)}{RESET}"
    if not requests:
        yield "no request is under way"
        return
    num_rows = room - 1 if num_live < room else room - 2
    shown = longest_first(requests, max(1, num_rows))
    for request in shown:
        texts = _texts(request, has_label=_LABEL in cells)
        yield "".join(_put(texts[column.head], column) for column in cells)
    if num_live > len(shown):
        yield f"{DIM}and {num_live - len(shown)} more{_more_words(requests, shown, num_live)}{RESET}"


def longest_first(requests: list[Row], num_rows: int) -> list[Row]:
    """The oldest that run, then the oldest that wait: half of the rows each, or more where the others are few."""
    by_age = sorted(requests, key=lambda request: -request["latency_ns"])
    waiting = [request for request in by_age if request["state"] in _WAITING]
    running = [request for request in by_age if request["state"] not in _WAITING]
    num_waiting = min(len(waiting), max(num_rows // 2, num_rows - len(running)))
    return running[: num_rows - num_waiting] + waiting[:num_waiting]


def process_table(processes: list[Row]) -> Iterator[str]:
    """Every process, the newest where there are very many."""
    heads = f"{'process':<22}{'pid':>8}  {'state':<9}{'doing':<16}{'heartbeat':>10}{'cpu s':>9}{'rss':>10}"
    yield f"{DIM}{heads}{RESET}"
    for process in _newest(processes):
        colour = "" if process["state"] in _LIVING else RED
        beat = process["heartbeat_age_seconds"]
        yield (
            f"{colour}{process['role']:<22}{process['pid']:>8}  {process['state']:<9}{process['activity']:<16}"
            f"{'' if beat is None else age(beat):>10}{number(process['cpu_seconds'], 1):>9}"
            f"{megabytes(process['rss_bytes']):>10}{RESET if colour else ''}"
        )


def process_lines(processes: list[Row], columns: int) -> list[str]:
    """Every process with what it does, or what became of it, in two lines at most."""
    words = [
        f"{process['role']}: {process['activity' if process['state'] in _LIVING else 'state']}"
        for process in _newest(processes)
    ]
    lines = textwrap.wrap(", ".join(words), columns, max_lines=2, placeholder=" …")
    colour = DIM if all(process["state"] in _LIVING for process in processes) else RED
    return [f"{colour}{line}{RESET}" for line in lines]


def _newest(processes: list[Row]) -> list[Row]:
    living = [process for process in processes if process["state"] in _LIVING]
    past = [process for process in processes if process["state"] not in _LIVING]
    return past[-max(1, MAX_PROCESSES - len(living)) :] + living[:MAX_PROCESSES]


def _cells_of(columns: int) -> list[_Column]:
    if columns < WIDE_COLUMNS:
        return list(_NARROW)
    return [*_WIDE] if columns < LABEL_COLUMNS else [_WIDE[0], _LABEL, *_WIDE[1:]]


def _texts(request: Row, has_label: bool) -> dict[str, str]:
    """What the cells say by their column's head; where labels have no column, one stands for the id."""
    label, request_id = request["external_id"], request["request_id"]
    if label and request["num_sequences"] > 1:
        label = f"{label} #{request['sequence_index']}"
    last = request["last_token_age_seconds"]
    last_words = "" if last is None else age(last)
    return {
        "request": request_id if has_label else label or request_id,
        "label": label,
        "state": request["state"],
        "stage": f"{request['stage']}: {request['reason']}" if request["reason"] else request["stage"],
        "age": age(request["latency_ns"] / 1e9),
        "prompt": str(request["num_prompt_tokens"]),
        "output": str(request["num_output_tokens"]),
        "last": last_words,
        "last token": last_words,
    }


def _put(text: str, column: _Column) -> str:
    if column.is_number:
        return f"{text:>{column.width}}"
    return f"{short(text, column.width - 1):<{column.width}}"


def _more_words(requests: list[Row], shown: list[Row], num_live: int) -> str:
    """In which states the rest is, where all are known."""
    if len(requests) < num_live:
        return ""
    rest = Counter(request["state"] for request in requests) - Counter(request["state"] for request in shown)
    return f" ({', '.join(f'{count} {state}' for state, count in rest.most_common())})"
