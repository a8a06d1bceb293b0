"""Grafana's JSON of one panel."""

import re
from typing import Any

from vllm_obs.dashboard.palette import LEVEL_COLOURS
from vllm_obs.grafana.board import Place
from vllm_obs.grafana.links import data_link
from vllm_obs.grafana.panel import Kind, Panel, Query
from vllm_obs.grafana.panel_options import custom_fields, options
from vllm_obs.grafana.variables import DATASOURCE

_BY_ENGINE = re.compile(r"by \([^)]*\bengine\b[^)]*\)")


def panel_document(panel: Panel, number: int, place: Place, links: list[dict[str, Any]]) -> dict[str, Any]:
    """The panel with its number on the board, its place and the links in its corner."""
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": description(panel),
        "datasource": DATASOURCE,
        "gridPos": place._asdict(),
        "links": links,
        "targets": [_target(panel, query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": options(panel),
    } | ({"transformations": _TABLE_ROWS} if panel.kind is Kind.TABLE else {})


_TABLE_ROWS = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "job": True}}}]


def description(panel: Panel) -> str:
    """What stands behind the (i): the question, the formula, what good looks like, and where to look next."""
    says = panel.says
    return "\n\n".join(
        (
            f"**{says.question}**",
            f"*Formula:* {says.formula}",
            f"*Good:* {says.good}",
            f"*Next:* {says.next}",
        )
    )


def _target(panel: Panel, query: Query, ref_id: str) -> dict[str, Any]:
    formats = {Kind.HEAT: "heatmap", Kind.TABLE: "table"}
    return {
        "refId": ref_id,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": formats.get(panel.kind, "time_series"),
        "instant": query.is_instant,
        "range": not query.is_instant,
        "exemplar": query.has_exemplars,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    has_engine = all(_BY_ENGINE.search(query.expr) for query in panel.queries)
    limits = {"max": panel.most} if panel.most is not None else {"max": 1.0} if panel.is_share else {}
    words = {str(number): {"text": word, "index": number} for number, word in panel.words.items()}
    return {
        "unit": panel.unit,
        "min": 0,
        **limits,
        "noValue": panel.idle,
        "color": {"mode": "thresholds" if panel.kind in _BY_LEVEL else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
        "mappings": [{"type": "value", "options": words}] if words else [],
        "links": [data_link(panel.page, has_engine)],
        "custom": custom_fields(panel),
    }


_BY_LEVEL = (Kind.TILES, Kind.BARS, Kind.STATES)


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """The colours of levels, from the lowest up; one that says nothing where none is better than another."""
    levels = panel.levels
    if levels is None:
        return [{"color": LEVEL_COLOURS["unknown"], "value": None}]
    good, warning, bad = (LEVEL_COLOURS[name] for name in ("good", "warning", "bad"))
    if levels.is_low_bad:
        steps = [(None, bad), (levels.bad, warning), (levels.warning, good)]
    else:
        steps = [(None, good), (levels.warning, warning), (levels.bad, bad)]
    values = [value for value, _ in steps]
    # Where both are the same there is nothing of note that is not bad.
    return [
        {"color": colour, "value": value}
        for index, (value, colour) in enumerate(steps)
        if value not in values[index + 1 :]
    ]


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in panel.colours.items()
    ]
