"""The variables of a board: what is looked at, and where its links lead."""

from typing import Any

from vllm_obs.grafana.settings import BoardSettings

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_KNOWN_BY = "vllm:num_requests_running"
_PERCENTILES = {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99"}
_USUAL_PERCENTILE = "p95"
_PROMISES = ("0.9", "0.95", "0.99", "0.999")
_USUAL_PROMISE = "0.99"
_REFRESHED_WITH_TIME = 2


def variables(settings: BoardSettings, has_objectives: bool) -> list[dict[str, Any]]:
    """In the order in which they are shown; the choices of each depend on those before it."""
    uid = settings.datasource
    shown = [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {"text": uid, "value": uid} if uid else {},
        },
        _labels("job", "Job", _KNOWN_BY),
        _labels("model_name", "Model", f'{_KNOWN_BY}{{job=~"$job"}}', has_any=True),
        _labels("instance", "Instance", f'{_KNOWN_BY}{{job=~"$job", model_name=~"$model_name"}}'),
        _labels("engine", "Engine", f'{_KNOWN_BY}{{job=~"$job", instance=~"$instance"}}', has_any=True),
        _choice("percentile", "Percentile", _PERCENTILES, _USUAL_PERCENTILE),
        {
            "name": "inspector",
            "label": "Inspector",
            "type": "textbox",
            "query": settings.inspector_url,
            "current": {"text": settings.inspector_url, "value": settings.inspector_url},
        },
    ]
    promise = _choice("promised", "Promised share", {each: each for each in _PROMISES}, _USUAL_PROMISE)
    return [*shown, promise] if has_objectives else shown


def _labels(name: str, label: str, series: str, has_any: bool = False) -> dict[str, Any]:
    """The values that a label has. Those of `has_any` may be missing from a series where all are chosen."""
    asked = f"label_values({series}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": asked,
        "query": {"query": asked, "refId": f"variable-{name}", "qryType": 1},
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": _REFRESHED_WITH_TIME,
        "sort": 1,
    } | ({"allValue": ".*"} if has_any else {})


def _choice(name: str, label: str, values: dict[str, str], usual: str) -> dict[str, Any]:
    options = [{"text": text, "value": value, "selected": text == usual} for text, value in values.items()]
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ", ".join(value if text == value else f"{text} : {value}" for text, value in values.items()),
        "options": options,
        "current": {"text": usual, "value": values[usual]},
        "multi": False,
        "includeAll": False,
    }
