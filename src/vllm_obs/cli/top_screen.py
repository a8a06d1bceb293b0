"""What `vllm-obs top` shows: lines of text made from one look at the inspector API, to fit the terminal."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

from vllm_obs.cli.top_cells import BOLD, DIM, GREEN, NOTHING, RED, RESET, YELLOW, age, bar, cut, latency, short
from vllm_obs.cli.top_tables import process_lines, process_table, request_table
from vllm_obs.cli.top_verdict import verdict_evidence, verdict_lines

MAX_REQUESTS = 15
"""Shown where there is no end of the page."""
MIN_REQUESTS = 8
"""Where so many have no room, as far as there are so many, all else is shown in fewer lines; then half of them."""
MAX_ENGINES = 4
MODEL_WIDTH = 32
LONG_STEP_SECONDS = 2.0
"""An engine that runs something and has ended no step for so long is worth a word."""
MAX_HEALTH_LINES = 3
NARROW_COLUMNS = 100
_COLOURS = {"ok": GREEN, "idle": GREEN, "starting": YELLOW, "recording": YELLOW, "draining": YELLOW}
_GONE = ("dead", "given up")
_PHASES = ("schedule", "execute", "sample", "update")
_QUANTILES = (
    ("ttft", "TTFT"),
    ("itl", "ITL"),
    ("e2e", "end to end"),
    ("queue_so_far", "queue"),
    ("step", "step"),
)
_NUM_SHORT_QUANTILES = 3
_RATES = (
    ("output_tokens", "output/s", 10),
    ("prompt_tokens", "prompt/s", 10),
    ("requests", "requests/s", 12),
    ("failed_requests", "failed/s", 10),
    ("steps", "steps/s", 10),
)


class Look(NamedTuple):
    """One look at a server: the inspector's answers to the questions the screen is made of."""

    state: dict[str, Any]
    requests: list[dict[str, Any]]
    quantiles: dict[str, Any]
    processes: list[dict[str, Any]]
    verdict: dict[str, Any] = {}  # noqa: RUF012 (of a NamedTuple; nobody changes a look)


@dataclass(frozen=True)
class Frame:
    """Where a look is shown, and what else is to be told. Without `rows` there is no end of the page.

    `trouble` is why there is no newer look, `others` are runs that live beside the one looked at.
    """

    url: str
    columns: int
    rows: int | None = None
    trouble: str = ""
    others: tuple[str, ...] = ()


def screen(look: Look, frame: Frame) -> list[str]:
    """The lines, none wider than the frame and not more than it has; colour is in ANSI sequences."""
    num_live = look.state["requests"]["num_live"]
    above, below = _whole(look, frame)
    room = MAX_REQUESTS + 2
    if frame.rows is not None:
        for layout, min_requests in ((_whole, MIN_REQUESTS), (_short, MIN_REQUESTS // 2), (_least, 1)):
            above, below = layout(look, frame)
            room = frame.rows - len(above) - len(below)
            if room >= min(min_requests, num_live) + 2:
                break
    requests = request_table(look.requests, num_live, frame.columns, max(3, room))
    lines = [cut(line, frame.columns) for line in (*above, *requests, *below)]
    return lines if frame.rows is None else lines[: frame.rows]


def _whole(look: Look, frame: Frame) -> tuple[list[str], list[str]]:
    """Everything, with room between: what is above the requests, and what is below."""
    above = [
        *_head(look, frame),
        *verdict_evidence(look.verdict, frame.columns),
        _traces(look.state["telemetry"]),
        "",
        *_engines(look.state, frame.columns),
        "",
        *_rates(look.state, None),
        "",
        *_latencies(look.quantiles, None),
        "",
        *_waiting(look.state),
    ]
    return above, ["", *process_table(look.processes)]


def _short(look: Look, frame: Frame) -> tuple[list[str], list[str]]:
    """What matters most, in few lines."""
    above = [
        *_head(look, frame),
        *_engines(look.state, frame.columns),
        *_rates(look.state, 1),
        *_latencies(look.quantiles, _NUM_SHORT_QUANTILES),
        *_waiting(look.state),
    ]
    return above, process_lines(look.processes, frame.columns)


def _least(look: Look, frame: Frame) -> tuple[list[str], list[str]]:
    """For a terminal of few lines."""
    engines = _engines(look.state, frame.columns, is_short=True)
    above = [*_head(look, frame), *engines, *_waiting(look.state)]
    return above, process_lines(look.processes, frame.columns)[:1]


def _head(look: Look, frame: Frame) -> Iterator[str]:
    state = look.state
    # A model that was given as a file is served under its path.
    model = ", ".join(PurePath(name).name if name[:1] in "./" else name for name in state["models"])
    model = short(model or "no model yet", MODEL_WIDTH)
    yield f"{BOLD}vllm-obs{RESET}  {model}  up {age(state['uptime_seconds'])}  {DIM}{frame.url}{RESET}"
    yield from verdict_lines(look.verdict, frame.columns)
    yield from _health(state, frame)
    if frame.others:
        yield f"{YELLOW}also alive: {', '.join(frame.others)} (--url){RESET}"
    if state["telemetry"]["num_lost_records"]:
        yield f"{YELLOW}{state['telemetry']['num_lost_records']} records were lost to overrun{RESET}"


def _health(state: dict[str, Any], frame: Frame) -> Iterator[str]:
    word, says = state["health"]["word"], state["health"]["says"]
    colour = RED if state["deaths"] and word == "recording" else _COLOURS.get(word, RED)
    if frame.trouble:
        word, says, colour = "no answer", frame.trouble, RED
    elif word != "recording" and _COLOURS.get(word):
        says = " ".join([says, *(death["says"] for death in state["deaths"])])
    first, *rest = textwrap.wrap(
        f"{word}  {says}", max(20, frame.columns), max_lines=MAX_HEALTH_LINES, placeholder=" …"
    )
    yield f"{colour}{word}{RESET}{first[len(word) :]}"
    yield from rest


def _traces(telemetry: dict[str, Any]) -> str:
    """How much is traced, and what became of the spans; without exporters nothing is."""
    exports = telemetry["exports"]
    if not exports:
        return f"{DIM}traces  off: no endpoint takes them{RESET}"
    dropped = exports["num_dropped_spans"] + exports["num_spans_over_budget"]
    share = f"{100 * telemetry['sample_rate']:g} % of requests sampled"
    sent = f"{exports['num_exported_spans']} spans sent, {dropped} not"
    return f"traces  detail {telemetry['detail_level']} of 3, {share}, {sent}"


def _engines(state: dict[str, Any], columns: int, is_short: bool = False) -> Iterator[str]:
    is_narrow = columns < NARROW_COLUMNS
    for engine in state["engines"][:MAX_ENGINES]:
        yield _engine(engine)
        if is_short:
            continue
        if engine["state"] in _GONE:
            yield from _last_plan(engine["last_plan"])
        else:
            yield _blocks(engine["blocks"], 10 if is_narrow else 20)
        yield _loop(engine["loop"]["10s"], is_narrow)
    if len(state["engines"]) > MAX_ENGINES:
        yield f"{DIM}and {len(state['engines']) - MAX_ENGINES} more engines{RESET}"


def _engine(engine: dict[str, Any]) -> str:
    """Its work, and for how long it has ended no step where that is long."""
    work = f"{engine['num_running']} running  {engine['num_waiting']} waiting"
    words = f"engine {engine['engine']}  {work}  step {engine['last_step']}  {engine['state']}"
    seconds = engine["last_step_age_seconds"] or 0.0
    if engine["state"] in _GONE:
        return f"{RED}{words}{RESET}"
    if engine["num_running"] and seconds >= LONG_STEP_SECONDS:
        words += f"  {YELLOW}no step has ended for {age(seconds)}{RESET}"
    return words


def _last_plan(plan: dict[str, int] | None) -> Iterator[str]:
    """How a dead engine was."""
    if plan is not None:
        work = f"{plan['num_running']} running, {plan['num_waiting']} waiting"
        blocks = ", ".join(f"{plan[f'num_{kind}_blocks']} {kind}" for kind in ("active", "cached", "free"))
        yield f"  at its last step: {work}; blocks: {blocks}"


def _blocks(blocks: dict[str, Any], width: int) -> str:
    usage = blocks["usage"]
    return (
        f"  KV   {bar(usage, width)} {100 * usage:5.1f} %  {blocks['num_active']} active, "
        f"{blocks['num_cached']} cached, {blocks['num_free']} free of {blocks['num_blocks']}"
    )


def _loop(loop: dict[str, float], is_narrow: bool) -> str:
    """The shares of the last ten seconds, in per cent."""
    phases = ", ".join(f"{phase} {100 * loop[phase]:.1f}" for phase in _PHASES)
    shown = bar(loop["busy"], 10 if is_narrow else 20)
    return f"  loop {shown} {100 * loop['busy']:5.1f} %{'' if is_narrow else ' busy'}  {phases}"


def _rates(state: dict[str, Any], num_windows: int | None) -> Iterator[str]:
    heads = "".join(f"{head:>{width}}" for _, head, width in _RATES)
    yield f"{DIM}{'':<8}{heads}{RESET}"
    for window, rates in islice(state["throughput"].items(), num_windows):
        cells = "".join(f"{rates[f'{name}_per_second']:>{width}.1f}" for name, _, width in _RATES)
        yield f"{window:<8}{cells}"


def _latencies(quantiles: dict[str, Any], num_measures: int | None) -> Iterator[str]:
    measured, keys = quantiles["quantiles"], ("p50", "p95", "p99", "max")
    heads = "".join(f"{key:>12}" for key in keys)
    yield f"{DIM}{'last 1m':<12}{heads}{'count':>8}{RESET}"
    for name, words in _QUANTILES[:num_measures]:
        if found := measured.get(name):
            values = [found[key] if found["num_observed"] else None for key in keys]
            cells = "".join(f"{latency(value):>12}" for value in values)
            yield f"{words:<12}{cells}{found['num_observed'] or NOTHING:>8}"


def _waiting(state: dict[str, Any]) -> Iterator[str]:
    reasons = state["waiting"]["by_reason"]
    if reasons:
        words = ", ".join(f"{count} for {reason}" for reason, count in reasons.items())
        yield f"{YELLOW}waiting{RESET}  {words}"
