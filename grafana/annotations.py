"""Annotations: what happened to the servers, marked on the time axis of every panel."""

from typing import Any, NamedTuple

from vllm_obs.dashboard.palette import LEVEL_COLOURS, STAGE_COLOURS
from vllm_obs.grafana.promql import engine, highest, increase, server, total
from vllm_obs.grafana.variables import DATASOURCE

_LOOK_BACK = "1m"
_STEP = "15s"


class Annotation(NamedTuple):
    """Marks the times at which `expr` is above 0; of `is_moment` ones its value is the time, in wall ms."""

    name: str
    expr: str
    title: str
    colour: str
    is_moment: bool = False
    is_vllms: bool = False

    @property
    def query(self) -> str:
        """What is asked."""
        return self.expr if self.is_moment else f"({self.expr}) > 0"


def _changed(series: str) -> str:
    return f"max by (instance) (changes({series}[{_LOOK_BACK}]))"


ANNOTATIONS = (
    Annotation(
        "Incidents",
        total(increase(server("vllm_obs_incidents_total"), _LOOK_BACK), "instance", "cause"),
        "incident: {{cause}} on {{instance}}",
        LEVEL_COLOURS["bad"],
    ),
    Annotation(
        "Stalls",
        highest(server("vllm_obs_stalled"), "instance", "engine", "role"),
        "engine {{engine}} of {{instance}} is held up by {{role}}",
        STAGE_COLOURS["stalled"],
    ),
    Annotation(
        "Restarts",
        f"{server('process_start_time_seconds')} * 1000",
        "{{instance}} was started",
        LEVEL_COLOURS["warning"],
        is_moment=True,
        is_vllms=True,
    ),
    Annotation(
        "Processes started again",
        total(increase(server("vllm_obs_process_starts_total"), _LOOK_BACK), "instance", "role", "rank"),
        "{{role}} {{rank}} of {{instance}} was started again",
        LEVEL_COLOURS["warning"],
    ),
    Annotation(
        "Sleeping and waking",
        _changed(engine("vllm:engine_sleep_state")),
        "an engine of {{instance}} went to sleep or woke",
        STAGE_COLOURS["submit"],
        is_vllms=True,
    ),
    Annotation(
        "Trace detail changed",
        _changed(server("vllm_obs_telemetry_detail_level")),
        "another trace detail on {{instance}}",
        STAGE_COLOURS["tokenize"],
    ),
    Annotation(
        "Trace sampling changed",
        _changed(server("vllm_obs_trace_sample_ratio")),
        "another share of traces on {{instance}}",
        STAGE_COLOURS["tokenize"],
    ),
    Annotation(
        "Objectives changed",
        _changed(server("vllm_obs_slo_target_seconds")),
        "other objectives on {{instance}}",
        STAGE_COLOURS["tokenize"],
    ),
)


def annotations(is_fleets: bool) -> list[dict[str, Any]]:
    """Grafana's own (what people note by hand), and ours; those that vLLM has too of a fleet's board."""
    by_hand = {
        "name": "Annotations & Alerts",
        "type": "dashboard",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": LEVEL_COLOURS["unknown"],
    }
    return [by_hand, *(_document(each) for each in ANNOTATIONS if each.is_vllms or not is_fleets)]


def _document(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "expr": annotation.query,
        "step": _STEP,
        "titleFormat": annotation.title,
        "textFormat": annotation.title,
        "useValueForTime": "on" if annotation.is_moment else "off",
    }
