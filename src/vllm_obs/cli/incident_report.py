"""What `vllm-obs incident show` prints: one incident on a screen or two."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.explain_words import duration

NS = 1e9
MAX_REQUESTS = 12
MAX_EVENTS = 16
NUM_LOG_LINES = 8
NUM_FRAMES = 4
NUM_STEPS = 100
MAX_LINE = 160

Row = dict[str, Any]


def report(content: Row, now: float) -> str:
    """The whole report. `now` is in seconds since 1970."""
    incident = content["incident"]
    parts = [
        _head(content, now),
        _section("Timeline", _timeline(incident)),
        _section("Processes, when it happened", _processes(content["processes"], incident["culprit"])),
        _section(_requests_title(incident), _requests(content["open_requests"])),
        _section(f"Last steps ({len(content['steps'])} are kept)", _steps_of_engines(content["steps"])),
        _section("Stacks", _stacks(content["stacks"])),
        *_logs(content["logs"], [incident["culprit"]["role"], "APIServer_0"]),
        _section("Where", _where(content)),
    ]
    return "\n\n".join(part for part in parts if part)


def age(seconds: float) -> str:
    """12 s, 3 min, 5 h or 2 days."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _head(content: Row, now: float) -> str:
    incident = content["incident"]
    wall_at = incident["happened"]["wall_at"] / NS
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_at))
    how = "; put together from the flight recorders" if incident.get("is_reconstructed") else ""
    verdict = incident.get("verdict", {}).get("says", "")
    lines = [
        f"{incident['name']}  ({when}, {age(now - wall_at)} ago; run {incident['run']}{how})",
        "",
        incident["says"],
        *incident.get("helps", ()),
    ]
    lines += [f"Until then: {verdict}"] if verdict else []
    if damaged := content.get("damaged"):
        lines.append(f"This folder is damaged; what follows leaves out what cannot be read: {', '.join(damaged)}.")
    if incident.get("is_unwritten"):
        lines.append("It could not be written down (is the disk full?), so this sentence is all there is as yet.")
    return "\n".join(lines)


def _section(title: str, lines: Iterator[str]) -> str:
    body = [f"  {line}"[:MAX_LINE].rstrip() for line in lines]
    return "\n".join([title, *body]) if body else ""


def _timeline(incident: Row) -> Iterator[str]:
    at = incident["happened"]["monotonic_at"]
    for event in incident["timeline"][-MAX_EVENTS:]:
        yield f"{(event['at'] - at) / NS:+9.3f} s  {event['says']}"


def _processes(rows: list[Row], culprit: Row) -> Iterator[str]:
    """The process at fault has a mark before it."""
    if rows:
        titles = f"  {'role':<16} {'pid':>8} {'state':<7} {'doing':<14} {'step':>7}"
        yield f"{titles} {'for':>9} {'exit':>5} {'memory':>9}"
    for row in rows:
        memory = (row.get("memory") or {}).get("resident_bytes", 0)
        exit_code = "" if row["exit_code"] is None else row["exit_code"]
        held = f"{memory / (1 << 20):.0f} MiB" if memory else ""
        mark = ">" if (row["role"], row["pid"]) == (culprit["role"], culprit["pid"]) else " "
        yield (
            f"{mark} {row['role']:<16} {row['pid']:>8} {row['state']:<7} {row['activity']:<14} "
            f"{row['step'] or '':>7} {row['activity_ns'] / NS:>7.2f} s {exit_code:>5} {held:>9}"
        )


def _requests_title(incident: Row) -> str:
    requests = incident["requests"]
    stages = ", ".join(f"{number} in {stage}" for stage, number in requests["by_stage"].items())
    return f"Open requests ({requests['num_open']}{': ' + stages if stages else ''})"


def _requests(rows: list[Row]) -> Iterator[str]:
    shown = rows[:MAX_REQUESTS]
    stages = [f"{row['stage']} ({row['reason']})" if row["reason"] else row["stage"] for row in shown]
    width = max([5, *map(len, stages)])
    if rows:
        yield (
            f"{'request':<36} {'X-Request-Id':<16} {'stage':<{width}} {'in it':>9} {'age':>9} {'prompt':>7} "
            f"{'output':>7}  before"
        )
    for row, stage in zip(shown, stages, strict=True):
        spent = ", ".join(f"{name} {duration(ns)}" for name, ns in row["stage_ns"].items() if name != row["stage"])
        yield (
            f"{row['request_id']:<36.36} {row['external_id'] or row['http_id']:<16} {stage:<{width}} "
            f"{duration(row['in_stage_ns']):>9} {duration(row['age_ns']):>9} {row['num_prompt_tokens']:>7} "
            f"{row['num_output_tokens']:>7}  {spent}"
        )
    if len(rows) > MAX_REQUESTS:
        yield f"… and {len(rows) - MAX_REQUESTS} more in requests.jsonl"


def _steps_of_engines(rows: list[Row]) -> Iterator[str]:
    """Of several engines each for itself."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    for engine in engines:
        name = f"engine {engine}: " if len(engines) > 1 else ""
        yield from (f"{name}{line}" for line in _steps([row for row in rows if row["engine"] == engine]))


def _steps(rows: list[Row]) -> Iterator[str]:
    last = [row for row in rows if row["updated_at"]][-NUM_STEPS:]
    if not last:
        return
    lengths = sorted((row["updated_at"] - row["schedule_begun_at"]) / 1e6 for row in last)
    slowest = max(last, key=lambda row: row["updated_at"] - row["schedule_begun_at"])
    yield (
        f"of the last {len(last)} answered: median {statistics.median(lengths):.1f} ms, "
        f"slowest {lengths[-1]:.1f} ms (step {slowest['step']}), {sum(row['num_tokens'] for row in last)} tokens, "
        f"{statistics.mean(row['num_requests'] for row in last):.1f} requests a step"
    )
    final = rows[-1]
    reason = f", the first waiting for {final['head_reason']}" if final["head_reason"] else ""
    yield (
        f"the last, step {final['step']}: {final['num_running']} running, {final['num_waiting']} waiting{reason}; "
        f"blocks {final['num_active_blocks']} active, {final['num_cached_blocks']} cached, "
        f"{final['num_free_blocks']} free"
    )
    failed = [f"step {row['step']} with {row['failed']}" for row in rows if row["failed"]]
    if failed:
        yield f"failed: {', '.join(failed[-4:])}"


def _stacks(stacks: dict[str, str]) -> Iterator[str]:
    for title, text in stacks.items():
        frames = [line.strip() for line in _main_thread(text).splitlines() if line.startswith(" ")]
        yield f"{title}:" if frames else f"{title}: {text.strip().partition(chr(10))[0]}"
        yield from (f"  {frame}" for frame in frames[:NUM_FRAMES])


def _main_thread(text: str) -> str:
    """The thread that crashed or was asked, or is called the main one; else the last."""
    threads = text.strip().split("\n\n")
    named = (thread for thread in threads if "Current thread" in thread or "MainThread" in thread)
    return next(named, threads[-1])


def _logs(logs: dict[str, list[str]], titles: list[str]) -> Iterator[str]:
    """The end of the first of these logs that has one."""
    found = next((title for title in titles if logs.get(title)), None)
    if found is not None:
        yield _section(f"Log of {found}", iter(logs[found][-NUM_LOG_LINES:]))


def _where(content: Row) -> Iterator[str]:
    incident, folder = content["incident"], content["folder"]
    versions = (f"{name} {version}" for name, version in incident["versions"].items() if version)
    if shown := ", ".join(versions):
        yield shown
    yield folder
    if "recording" in incident["files"]:
        if not (Path(folder) / "recording").exists():
            return  # the disk had no room for it, or the run was pruned
        yield f"vllm-obs replay {folder}/recording shows its last steps again"
    else:
        yield f"vllm-obs record last.rec --run {folder} && vllm-obs replay last.rec shows its last steps again"
