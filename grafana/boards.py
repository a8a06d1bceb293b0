"""BOARDS: all of them, and the documents that Grafana reads."""

import json
from typing import Any

from vllm_obs.grafana.board_document import board_document
from vllm_obs.grafana.board_engine import ENGINE
from vllm_obs.grafana.board_fleet import FLEET
from vllm_obs.grafana.board_kv import KV_CACHE
from vllm_obs.grafana.board_overview import OVERVIEW
from vllm_obs.grafana.board_processes import PROCESSES
from vllm_obs.grafana.board_requests import REQUESTS
from vllm_obs.grafana.settings import DEFAULTS, BoardSettings

BOARDS = (OVERVIEW, ENGINE, KV_CACHE, REQUESTS, PROCESSES, FLEET)


def documents(settings: BoardSettings = DEFAULTS) -> dict[str, dict[str, Any]]:
    """The boards by the name of their file."""
    uids = {board.title: board.uid for board in BOARDS}
    return {f"{board.uid}.json": board_document(board, uids, settings) for board in BOARDS}


def text_of(document: dict[str, Any]) -> str:
    """As it stands in a file."""
    return json.dumps(document, indent=1) + "\n"
