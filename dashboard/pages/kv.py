"""The KV cache page: the map of all blocks, who holds and shares them, and why a request found what it found."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.block_map import KEY, MODES, Shown, block_map
from vllm_obs.dashboard.engine_choice import engine_selector
from vllm_obs.dashboard.frame import note_trouble, panel, teach
from vllm_obs.dashboard.kv_levels import levels_panel, trend_panel
from vllm_obs.dashboard.kv_request import request_panel
from vllm_obs.dashboard.kv_tables import holders_panel
from vllm_obs.dashboard.scheduler_tables import take_chosen
from vllm_obs.dashboard.source import current


def render() -> None:
    """Draw the page."""
    reading = current().get("/inspect/state")
    if not reading.is_there:
        note_trouble(reading)
        teach(
            "There is no server whose blocks could be shown.",
            "Start one with `vllm-obs serve`, or one with load of its own with `vllm-obs demo`.",
        )
        return
    engines = reading.content["engines"]
    if not engines:
        note_trouble(reading)
        teach(
            "No engine has made its KV cache yet.",
            "When it has, each of its blocks is a cell here, coloured by state, owner, references or age.",
        )
        return
    take_chosen()
    engine_selector([row["engine"] for row in engines], "kv-engine")
    panel(levels_panel)
    block_map(_shown(engines), _picked)
    panel(request_panel)
    panel(holders_panel)
    panel(trend_panel)


def _shown(engines: list[dict[str, Any]]) -> Shown:
    engine = url_state.engine()
    sizes = {row["engine"]: int(row["blocks"]["block_size"]) for row in engines}
    mode = url_state.text("colour", "state")
    return Shown(
        engine=engine,
        step=url_state.paused_step(),
        request=url_state.text("request"),
        mode=mode if mode in MODES else "state",
        block_size=sizes.get(engine, 0),
        is_live=current().is_live,
    )


def _picked() -> None:
    """A step, a request or a way of colouring was picked on the canvas."""
    picked = st.session_state[KEY].get("pick") or {}
    if "step" in picked:
        url_state.put(step=_whole(picked["step"]))
    if "request" in picked:
        request = picked["request"]
        url_state.put(request=str(request)[: url_state.MAX_LENGTH] if request else None)
    if picked.get("mode") in MODES:
        url_state.put(colour=picked["mode"])


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**62 else None
