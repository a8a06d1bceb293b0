"""What `vllm-obs profile` prints: where the time of the steps went, and where the files are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUM_ROWS = 20
NUM_FUNCTIONS = 10
NAME_CHARS = 38
_SUFFIXES = {
    ".trace.json": "open https://ui.perfetto.dev, then Open trace file",
    ".trace.json.gz": "open https://ui.perfetto.dev, then Open trace file",
    ".speedscope.json": "open https://www.speedscope.app, then Browse",
}
"""How files are looked at, by their names' ends."""
_HEADS = f"{'self ms':>10} {'total ms':>10} {'steps':>7} {'forward':>8}"


def profile_words(profile: dict[str, Any], saved: Path | None) -> list[str]:
    """The profile for people, line by line; `saved` is where its files were copied to."""
    lines: list[str] = []
    tables = profile["operators"] or []
    for table in tables:
        lines += [*_table_lines(table), ""]
        if table.get("kernels"):
            lines += [*_kernel_lines(table), ""]
    if profile["samples"]:
        lines += _sample_lines(profile["samples"])
        lines += _sampling_lines(profile.get("sampling") or {})
    for part in profile["parts"]:
        if part["error"]:
            lines.append(f"{part['role']} (pid {part['pid']}) gave nothing: {part['error']}")
    if not profile["files"]:
        return [*lines, f"The profile {profile['profile']} has no files ({profile['state']})."]
    return [*lines, *_file_lines(profile, saved)]


def _table_lines(table: dict[str, Any]) -> Iterator[str]:
    num_steps = table["num_steps"]
    if not num_steps:
        yield f"{table['role']}: no step ran meanwhile; profile again while requests are served."
        return
    span = f"{table['first_step']} to {table['last_step']}"
    yield (
        f"{table['role']}: {num_steps} steps ({span}), median {1e3 * table['median_step_seconds']:.1f} ms, "
        f"longest {1e3 * table['max_step_seconds']:.1f} ms"
    )
    yield ""
    yield f"  {'operator':<{NAME_CHARS}} {'phase':<8} {'calls':>8} " + _HEADS
    rows = table["operators"]
    yield from map(_row, rows[:NUM_ROWS])
    if len(rows) > NUM_ROWS:
        rest = sum(row["self_seconds"] for row in rows[NUM_ROWS:])
        yield f"  {f'({len(rows) - NUM_ROWS} more)':<{NAME_CHARS}} {'':<8} {'':>8} {1e3 * rest:>10.1f}"
    yield ""
    yield (
        f"  Operators account for {100 * table['accounted_share']:.1f} % of the {table['forward_seconds']:.3f} s "
        "that the forward passes took; the rest is Python between them."
    )


def _row(row: dict[str, Any]) -> str:
    share = row["share_of_forward"]
    name = _cut(row["operator"])
    forward = "" if share is None else f"{100 * share:.1f} %"
    times = f"{1e3 * row['self_seconds']:>10.1f} {1e3 * row['total_seconds']:>10.1f}"
    steps = f"{100 * row['share_of_steps']:.1f} %"
    return (
        f"  {name:<{NAME_CHARS}} {row['phase']:<8} {row['num_calls']:>8} {times} {steps:>7} {forward:>8}".rstrip()
    )


def _kernel_lines(table: dict[str, Any]) -> Iterator[str]:
    """What ran on the rank's device."""
    rows = table["kernels"]
    yield (
        f"  On the device: {table['device_seconds']:.3f} s of kernels and copies; it was busy for "
        f"{table['device_busy_seconds']:.3f} s of the {table['step_seconds']:.3f} s of the steps."
    )
    yield ""
    yield f"  {'kernel':<{NAME_CHARS}} {'kind':<8} {'calls':>8} {'device ms':>10} {'mean µs':>10} {'share':>7}"
    for row in rows[:NUM_ROWS]:
        times = f"{1e3 * row['device_seconds']:>10.1f} {1e6 * row['mean_seconds']:>10.1f}"
        share = f"{100 * row['share_of_device']:.1f} %"
        yield f"  {_cut(row['kernel']):<{NAME_CHARS}} {row['kind']:<8} {row['num_calls']:>8} {times} {share:>7}"
    if len(rows) > NUM_ROWS:
        rest = sum(row["device_seconds"] for row in rows[NUM_ROWS:])
        yield f"  {f'({len(rows) - NUM_ROWS} more)':<{NAME_CHARS}} {'':<8} {'':>8} {1e3 * rest:>10.1f}"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"


def _sample_lines(samples: list[dict[str, Any]]) -> Iterator[str]:
    """Of each role the functions by the CPU time used in them itself: what only waits is below what ran."""
    for role in samples:
        knows = role["knows_who_ran"]
        ran = f", {role['num_ran']} of them ran" if knows else ""
        yield f"{role['role']}: {role['num_samples']} samples{ran}, {role['cpu_seconds']:.2f} s of CPU"
        yield f"  {'cpu ms':>8} {'cpu':>7} {'ran':>7} {'samples':>8}  function"
        found = [function for function in role["functions"] if function["self_samples"]]
        for function in sorted(found, key=_by_cpu, reverse=True)[:NUM_FUNCTIONS]:
            yield _function_line(function, role["cpu_seconds"], knows)
        yield ""
    if not all(role["knows_who_ran"] for role in samples):
        yield "A thread's CPU time is spread evenly over its samples, those in which it waited included."


def _by_cpu(function: dict[str, Any]) -> tuple[float, int, int]:
    return function["self_cpu_seconds"], function["self_ran"], function["self_samples"]


def _function_line(function: dict[str, Any], role_cpu_seconds: float, knows_who_ran: bool) -> str:
    cpu_seconds = function["self_cpu_seconds"]
    share = f"{100 * cpu_seconds / role_cpu_seconds:.1f} %" if role_cpu_seconds else ""
    ran = str(function["self_ran"]) if knows_who_ran else "?"
    columns = f"{1e3 * cpu_seconds:>8.1f} {share:>7} {ran:>7} {function['self_samples']:>8}"
    return f"  {columns}  {function['function']}  {function['file']}"


def _sampling_lines(sampling: dict[str, Any]) -> Iterator[str]:
    """Who sampled and why, and who did not answer."""
    if sampling.get("says"):
        yield f"Sampled with {sampling['sampler']}: {sampling['says']}."
    for role in sampling.get("missing", []):
        yield f"{role} did not answer in time: it may hang; only py-spy could see where."


def _file_lines(profile: dict[str, Any], saved: Path | None) -> Iterator[str]:
    yield f"Files in {saved or profile['directory']}:"
    for file in profile["files"]:
        hints = [hint for suffix, hint in _SUFFIXES.items() if file["name"].endswith(suffix)]
        size = f"{file['num_bytes'] / 1e3:.0f} kB"
        yield f"  {file['name']:<36} {size:>9}" + (f"  {hints[0]}" if hints else "")
