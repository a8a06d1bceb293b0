"""The host's GPUs as their driver tells of them: a row each; nothing where there are none."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING, number, seconds, share, size
from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.source import current

ROW_PIXELS, EDGE_PIXELS = 35, 2
MEGA = 1e6

Row = dict[str, Any]


def device_panel() -> None:
    """Draw it."""
    reading = current().get("/inspect/devices")
    view: Row = reading.content if reading.is_there else {"devices": []}
    rows = view["devices"]
    if not rows:
        return
    st.markdown("#### GPUs")
    if view["is_stale"]:
        st.warning(f"The driver has not answered for {seconds(view['age_seconds'])}: this is how it was then.")
    st.dataframe(
        {
            "GPU": [f"{row['number']} {row['name']}" for row in rows],
            "Busy": [share(row["utilization"]) for row in rows],
            "Memory busy": [share(row["memory_busy"]) for row in rows],
            "Memory": [_of(size(row["used_bytes"]), size(row["total_bytes"])) for row in rows],
            "Power": [_of(number(row["power_watts"]), _unit(row["power_limit_watts"], "W")) for row in rows],
            "SM clock": [_megahertz(row["sm_clock_hertz"]) for row in rows],
            "Memory clock": [_megahertz(row["memory_clock_hertz"]) for row in rows],
            "Temperature": [_unit(row["temperature_celsius"], "°C") for row in rows],
            "Held down by": [held_down_by(row) for row in rows],
        },
        hide_index=True,
        height=ROW_PIXELS * (len(rows) + 1) + EDGE_PIXELS,
        key="devices",
    )
    st.caption(
        f"Driver {escape(str(rows[0]['driver']))}. Busy: some kernel ran, whatever part of the GPU it used."
    )


def held_down_by(row: Row) -> str:
    """What holds the clocks down, in words."""
    if row["is_lost"]:
        return "the driver has lost this GPU"
    reasons = row["throttled_by"]
    return NOTHING if reasons is None else ", ".join(reason.replace("_", " ") for reason in reasons) or "nothing"


def _of(part: str, whole: str) -> str:
    return NOTHING if NOTHING in (part, whole) else f"{part} of {whole}"


def _megahertz(hertz: float | None) -> str:
    return _unit(None if hertz is None else hertz / MEGA, "MHz")


def _unit(value: float | None, unit: str) -> str:
    return NOTHING if value is None else f"{number(value)} {unit}"
