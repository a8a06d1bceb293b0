"""The inspector's view of telemetry itself: what is in force, what became of spans and records, what it costs."""

from typing import Any

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_processes import process_rows

_SPAN_COUNTS = {
    "num_sent": "num_exported_spans",
    "num_dropped": "num_dropped_spans",
    "num_over_budget": "num_spans_over_budget",
    "num_queued": "num_queued_spans",
    "num_links_left_out": "num_links_left_out",
    "num_failures": "num_trace_failures",
}
"""Our name → that of the exporters' counts."""


def telemetry_report(context: InspectContext) -> dict[str, Any]:
    """All of `/inspect/telemetry`; moments are monotonic ns."""
    setting, counts, lost = context.control.in_force, context.export_counts(), context.observer.state.num_lost
    return {
        "detail_level": setting.detail_level,
        "sample_rate": setting.sample_rate,
        "set_at": setting.set_at or None,
        "is_exporting": bool(counts),
        "says": _says(setting.detail_level, setting.sample_rate, bool(counts)),
        "spans": {name: counts.get(theirs, 0) for name, theirs in _SPAN_COUNTS.items()},
        "records": {"num_lost": sum(lost.values()), "lost_by_role": dict(lost)},
        "cpu": _cpu(context),
    }


def _says(detail_level: int, sample_rate: float, is_exporting: bool) -> str:
    if not is_exporting:
        return (
            "Nothing is traced: the server has no endpoint for traces. Start it with --otlp-traces-endpoint, "
            "or with OTEL_EXPORTER_OTLP_ENDPOINT in its environment."
        )
    if detail_level == 0:
        return "Nothing is traced: the detail level is 0."
    what = ("requests", "requests and their stages", "requests, their stages and their steps")[detail_level - 1]
    return f"Traced are {what}, for {100 * sample_rate:g} % of the requests that their caller has not decided on."


def _cpu(context: InspectContext) -> dict[str, Any]:
    """CPU time of the run's Observers, and its share (0 to 1) of what the run's living processes used.

    What writing records takes is in the other processes' own time. A recording knows no CPU time.
    """
    observer = context.observer
    if not observer.is_live:
        return {"observer_seconds": None, "run_seconds": None, "share": None}
    rows = process_rows(observer.state.processes, context.config.run_dir, observer.now())
    others = sum(row["cpu_seconds"] or 0.0 for row in rows if row["role"] != "Observer")
    own = observer.cost.cpu_seconds
    return {"observer_seconds": own, "run_seconds": own + others, "share": own / (own + others)}
