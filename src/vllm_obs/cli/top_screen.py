"""What `vllm-obs top` shows: lines of text made from one look at the inspector API."""

from collections.abc import Iterator
from typing import Any, NamedTuple

BAR_WIDTH = 20
MAX_WAITING = 5
MAX_REQUESTS = 15
BOLD, DIM, RED, GREEN, YELLOW, RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_COLOURS = {"ok": GREEN, "idle": GREEN, "starting": YELLOW, "recording": YELLOW}
_PHASES = ("schedule", "execute", "sample", "update")
_QUANTILES = (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "end to end"), ("queue", "queue"), ("step", "step"))


class Look(NamedTuple):
    """One look at a server: the inspector's answers to the questions the screen is made of."""

    state: dict[str, Any]
    requests: list[dict[str, Any]]
    quantiles: dict[str, Any]
    processes: list[dict[str, Any]]


def screen(look: Look, url: str, columns: int) -> list[str]:
    """The lines, none wider than `columns`; colour is in ANSI sequences."""
    lines = [
        *_head(look.state, url),
        "",
        *_engines(look.state),
        "",
        *_rates(look.state),
        "",
        *_latencies(look.quantiles),
        "",
        *_waiting(look.state),
        *_requests(look.requests, look.state["requests"]["num_live"]),
        "",
        *_processes(look.processes),
    ]
    return [cut(line, columns) for line in lines]


def cut(line: str, columns: int) -> str:
    """The line with at most `columns` characters to be seen; colours take no room."""
    shown, room, position = [], columns, 0
    while position < len(line):
        end = line.find("m", position) + 1 if line[position] == "\x1b" else position + 1
        if line[position] == "\x1b":
            shown.append(line[position:end])
        elif room:
            shown.append(line[position])
            room -= 1
        position = end
    return "".join(shown)


def _head(state: dict[str, Any], url: str) -> Iterator[str]:
    health = state["health"]
    colour = _COLOURS.get(health["word"], RED)
    model = ", ".join(state["models"]) or "no model yet"
    yield f"{BOLD}vllm-obs{RESET}  {model}  up {_age(state['uptime_seconds'])}  {DIM}{url}{RESET}"
    yield f"{colour}{health['word']}{RESET}  {health['says']}"
    yield _traces(state["telemetry"])
    if state["telemetry"]["num_lost_records"]:
        yield f"{YELLOW}{state['telemetry']['num_lost_records']} records were lost to overrun{RESET}"


def _traces(telemetry: dict[str, Any]) -> str:
    """How much is traced, and what became of the spans; without exporters nothing is."""
    exports = telemetry["exports"]
    if not exports:
        return f"{DIM}traces  off: no endpoint takes them{RESET}"
    dropped = exports["num_dropped_spans"] + exports["num_spans_over_budget"]
    share = f"{100 * telemetry['sample_rate']:g} % of requests sampled"
    sent = f"{exports['num_exported_spans']} spans sent, {dropped} not"
    return f"traces  detail {telemetry['detail_level']} of 3, {share}, {sent}"


def _engines(state: dict[str, Any]) -> Iterator[str]:
    for engine in state["engines"]:
        blocks, loop = engine["blocks"], engine["loop"]["10s"]
        usage = blocks["usage"]
        yield (
            f"engine {engine['engine']}  {engine['num_running']} running  {engine['num_waiting']} waiting  "
            f"step {engine['last_step']}  {engine['state']}"
        )
        yield (
            f"  KV   {_bar(usage)} {100 * usage:5.1f} %  {blocks['num_active']} active, "
            f"{blocks['num_cached']} cached, {blocks['num_free']} free of {blocks['num_blocks']}"
        )
        phases = ", ".join(f"{phase} {100 * loop[phase]:.1f}" for phase in _PHASES)
        yield f"  loop {_bar(loop['busy'])} {100 * loop['busy']:5.1f} % busy  {phases}"


def _rates(state: dict[str, Any]) -> Iterator[str]:
    yield f"{DIM}{'':<8}{'output/s':>10}{'prompt/s':>10}{'requests/s':>12}{'failed/s':>10}{'steps/s':>10}{RESET}"
    names = ("output_tokens", "prompt_tokens", "requests", "failed_requests", "steps")
    widths = (10, 10, 12, 10, 10)
    for window, rates in state["throughput"].items():
        numbers = [rates[f"{name}_per_second"] for name in names]
        cells = "".join(f"{number:>{width}.1f}" for number, width in zip(numbers, widths, strict=True))
        yield f"{window:<8}{cells}"


def _latencies(quantiles: dict[str, Any]) -> Iterator[str]:
    measured = quantiles["quantiles"]
    yield f"{DIM}{'last 1m':<12}{'p50':>12}{'p95':>12}{'p99':>12}{'count':>8}{RESET}"
    for name, words in _QUANTILES:
        if found := measured.get(name):
            cells = "".join(f"{_seconds(found[key]):>12}" for key in ("p50", "p95", "p99"))
            yield f"{words:<12}{cells}{found['num_observed']:>8}"


def _waiting(state: dict[str, Any]) -> Iterator[str]:
    reasons = state["waiting"]["by_reason"]
    if reasons:
        words = ", ".join(f"{count} for {reason}" for reason, count in reasons.items())
        yield f"{YELLOW}waiting{RESET}  {words}"
        yield ""


def _requests(requests: list[dict[str, Any]], num_live: int) -> Iterator[str]:
    heads = f"{'request':<36}{'state':<11}{'stage':<24}{'age':>9}{'prompt':>8}{'output':>8}{'last token':>12}"
    yield f"{DIM}{heads}{RESET}"
    for request in requests[:MAX_REQUESTS]:
        reason = request["reason"]
        stage = f"{request['stage']}: {reason}" if reason else request["stage"]
        last = request["last_token_age_seconds"]
        yield (
            f"{request['request_id'][:35]:<36}{request['state']:<11}{stage[:23]:<24}"
            f"{_age(request['latency_ns'] / 1e9):>9}{request['num_prompt_tokens']:>8}"
            f"{request['num_output_tokens']:>8}{'' if last is None else _age(last):>12}"
        )
    if num_live > MAX_REQUESTS:
        yield f"{DIM}and {num_live - MAX_REQUESTS} more{RESET}"
    if not requests:
        yield "no request is under way"


def _processes(processes: list[dict[str, Any]]) -> Iterator[str]:
    heads = f"{'process':<22}{'pid':>8}  {'state':<8}{'doing':<16}{'heartbeat':>10}{'cpu s':>9}{'rss':>10}"
    yield f"{DIM}{heads}{RESET}"
    for process in processes:
        colour = "" if process["state"] in ("starting", "ready") else RED
        beat = process["heartbeat_age_seconds"]
        yield (
            f"{colour}{process['role']:<22}{process['pid']:>8}  {process['state']:<8}{process['activity']:<16}"
            f"{'' if beat is None else _age(beat):>10}{_number(process['cpu_seconds'], 1):>9}"
            f"{_megabytes(process['rss_bytes']):>10}{RESET if colour else ''}"
        )


def _bar(share: float) -> str:
    full = round(BAR_WIDTH * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR_WIDTH - full)


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _megabytes(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1e6:.0f} MB"
