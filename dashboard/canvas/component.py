"""Makes a canvas component of a JavaScript file beside it; `stream.js` comes before every one of them."""

from functools import cache
from importlib import resources
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard.palette import (
    BLOCK_COLOURS,
    LEVEL_COLOURS,
    PHASE_COLOURS,
    REQUEST_COLOURS,
    STAGE_COLOURS,
    TOKEN_COLOURS,
)

COLOURS: dict[str, Any] = {
    "stage": STAGE_COLOURS,
    "token": TOKEN_COLOURS,
    "phase": PHASE_COLOURS,
    "block": BLOCK_COLOURS,
    "level": LEVEL_COLOURS,
    "request": list(REQUEST_COLOURS),
}
"""What a script finds as `data.colours`, if its page passes it on."""


def canvas_component(name: str, html: str, css: str = "", parts: tuple[str, ...] = ()) -> ComponentRenderer:
    """The mounting command of the component whose script is `NAME.js`, to be made once.

    `parts` are the names of scripts that it is cut into, which come before it.
    """
    scripts = "\n".join(_text(f"{each}.js") for each in ("stream", *parts, name))
    return st.components.v2.component(
        f"vllm_obs_{name}",
        html=html,
        css=f"{_text('stream.css')}\n{css}",
        js=scripts,
    )


@cache
def _text(name: str) -> str:
    return resources.files("vllm_obs.dashboard.canvas").joinpath(name).read_text(encoding="utf-8")
