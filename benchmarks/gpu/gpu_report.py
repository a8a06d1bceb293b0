"""What was found, as one JSON file and as tables for people."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JSON_NAME, TABLE_NAME = "gpu.json", "gpu.md"
Row = dict[str, Any]


def write_report(directory: Path, found: dict[str, Any]) -> tuple[Path, Path]:
    """Both files."""
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_tables = directory / JSON_NAME, directory / TABLE_NAME
    as_json.write_text(json.dumps(found, indent=1) + "\n")
    as_tables.write_text(markdown(found))
    return as_json, as_tables


def markdown(found: dict[str, Any]) -> str:
    """Tables, with the card, its driver and the date above them."""
    parts = (_head, _ceilings, _checks, _speeds, _throughput, _telemetry)
    sections = [part(found) for part in parts]
    for title, notes in (("Failed", found["failures"]), ("Cut short", found["cuts"])):
        if notes:
            sections.append(f"{title}:\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(found: dict[str, Any]) -> str:
    about = found["about"]
    dry = "**A dry run under Triton's interpreter: no figure means anything.**\n\n" if about["is_dry_run"] else ""
    if "card" not in about:
        return f"{dry}Nothing is known of the card; {found['seconds']:.0f} of {found['budget_seconds']:.0f} s."
    return (
        f"{dry}{about['card']}, driver {about['driver'] or 'none'}, torch {about['torch']}, "
        f"triton {about['triton']}, {about['date']}; kernels by {about['kernel_table']}; "
        f"{found['seconds']:.0f} of {found['budget_seconds']:.0f} s."
    )


def _ceilings(found: dict[str, Any]) -> str:
    ceilings = found.get("ceilings")
    if not ceilings:
        return ""
    return (
        f"Measured ceilings: {ceilings['bytes_per_second'] / 1e12:.2f} TB/s (a copy), "
        f"{ceilings['flops_per_second'] / 1e12:.0f} TFLOP/s (a bf16 product)."
    )


def _checks(found: dict[str, Any]) -> str:
    rows = found.get("checks")
    if not rows:
        return ""
    wrong = [row for row in rows if not row["is_right"]]
    verdict = f"{len(rows) - len(wrong)} of {len(rows)} checks against float64 hold."
    head = ("check", "difference", "allowed", "")
    body = (
        (row["check"], _number(row["difference"], "{:.1e}"), f"{row['allowed']:.0e}", row["error"] or _mark(row))
        for row in rows
    )
    return f"{verdict}\n\n{_table(head, body)}"


def _mark(row: Row) -> str:
    return "" if row["is_right"] else "WRONG"


def _speeds(found: dict[str, Any]) -> str:
    rows = found.get("speeds")
    if not rows:
        return ""
    head = ("sizes of", "kernel", "µs", "GB/s", "TFLOP/s", "bound by", "of the ceiling")
    return _table(
        head,
        (
            (
                row["model"],
                row["kernel"],
                f"{1e6 * row['seconds']:.1f}",
                f"{row['bytes_per_second'] / 1e9:.0f}",
                f"{row['flops_per_second'] / 1e12:.1f}" if row["num_flops"] else "",
                row["bound_by"],
                _percent(row["share_of_ceiling"]),
            )
            for row in rows
        ),
    )


def _throughput(found: dict[str, Any]) -> str:
    rows = found.get("throughput")
    if not rows:
        return ""
    head = ("model", "batch", "mode", "tokens/s", "ms a step", "floor ms", "floor over step")
    return _table(
        head,
        (
            (
                row["model"],
                str(row["batch"]),
                row["mode"],
                _number(row["tokens_per_second"], "{:.0f}"),
                _number(row["step_seconds"], "{:.2f}", 1e3),
                _number(row["floor_seconds"], "{:.2f}", 1e3),
                _percent(row["share_of_floor"]),
            )
            for row in rows
        ),
    )


def _telemetry(found: dict[str, Any]) -> str:
    telemetry = found.get("telemetry")
    if not telemetry or telemetry["mean_ratio"] is None:
        return ""
    pairs = ", ".join(f"{ratio:.4f}" for ratio in telemetry["ratios"])
    return f"Tokens/s with telemetry over without: {telemetry['mean_ratio']:.4f} (pairs: {pairs})."


def _table(head: tuple[str, ...], body: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "–" if value is None else form.format(value * scale)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
