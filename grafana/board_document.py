"""Grafana's JSON of one board."""

from collections.abc import Mapping
from typing import Any

from vllm_obs.grafana.annotations import annotations
from vllm_obs.grafana.board import Board, Place, Row, placed
from vllm_obs.grafana.links import TAG, board_links, panel_links
from vllm_obs.grafana.panel import Panel
from vllm_obs.grafana.panel_document import panel_document
from vllm_obs.grafana.settings import BoardSettings
from vllm_obs.grafana.variables import variables

SCHEMA_VERSION = 39
"""Grafana 10.4's; later ones read it too."""


def board_document(board: Board, uids: Mapping[str, str], settings: BoardSettings) -> dict[str, Any]:
    """The whole of it. `uids` are the boards by their titles, which the panels' last lines name."""
    documents = []
    for number, (part, place) in enumerate(placed(board), 1):
        if isinstance(part, Row):
            documents.append(_row(part, number, place))
        else:
            documents.append(panel_document(part, number, place, _links(board, part, uids)))
    return {
        "uid": board.uid,
        "title": f"vllm-obs / {board.title}",
        "description": board.says,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "timezone": "",
        "time": {"from": "now-15m", "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "templating": {"list": variables(settings, _has_objectives(board))},
        "annotations": {"list": annotations(board.is_fleets)},
        "links": board_links(),
        "panels": documents,
    }


def _row(row: Row, number: int, place: Place) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": place._asdict(),
        "panels": [],
    }


def _links(board: Board, panel: Panel, uids: Mapping[str, str]) -> list[dict[str, Any]]:
    title, _, _ = panel.says.next.partition(": ")
    return panel_links(panel.page, panel.says.next, uids[title] if title != board.title else None)


def _has_objectives(board: Board) -> bool:
    return any("$promised" in query.expr for panel in board.panels for query in panel.queries)
