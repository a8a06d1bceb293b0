"""The profile page: where the time goes inside a step, and inside the processes; bounded captures on request."""

from typing import Any
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import size
from vllm_obs.dashboard.frame import REFRESH_SECONDS, escape, note_trouble, panel, said, teach
from vllm_obs.dashboard.profile_order import order_form
from vllm_obs.dashboard.profile_phases import phases_panel
from vllm_obs.dashboard.profile_tables import operator_tables, sample_tables
from vllm_obs.dashboard.profile_utilisation import utilisation_panel
from vllm_obs.dashboard.proxy import PREFIX
from vllm_obs.dashboard.source import current

LIST_SECONDS = 2.0
UNDER_WAY = "running"
_COLUMNS: dict[str, Any] = {
    "name": st.column_config.TextColumn("Profile", width="medium"),
    "kind": st.column_config.TextColumn("Of", width="small"),
    "state": st.column_config.TextColumn("State", width="small"),
    "parts": st.column_config.TextColumn("Processes", width="large"),
    "read": st.column_config.LinkColumn("Read", display_text="open", width="small"),
}


def render() -> None:
    """Draw the page."""
    panel(phases_panel)
    panel(utilisation_panel)
    order_form()
    panel(_list, LIST_SECONDS)
    name = url_state.text("profile") or _newest()
    if name:
        _one(name)


def _newest() -> str:
    reading = current().get("/inspect/profiles")
    rows = reading.content["profiles"] if reading.is_there else []
    return next((str(row["profile"]) for row in rows if row["files"]), "")


def _list() -> None:
    reading = current().get("/inspect/profiles")
    note_trouble(reading)
    rows = reading.content["profiles"] if reading.is_there else []
    st.dataframe(
        {
            "name": [row["profile"] for row in rows],
            "kind": [{"operators": "operators", "samples": "stacks"}.get(row["kind"], "–") for row in rows],
            "state": [row["state"] for row in rows],
            "parts": [_parts(row) for row in rows],
            "read": [url_state.link("profile", profile=row["profile"]) for row in rows],
        },
        hide_index=True,
        height=143,
        key="profiles",
        column_config=_COLUMNS,
        placeholder="–",
    )
    st.caption(
        "The last profiles of this run. One is under way at a time." if rows else "No profile has been taken yet."
    )


def _parts(row: dict[str, Any]) -> str:
    parts = [f"{part['role']}{': ' + part['error'] if part['error'] else ''}" for part in row["parts"]]
    return ", ".join(parts) or "–"


def _one(name: str) -> None:
    reading = current().get(_path(name))
    if not reading.is_there:
        teach("This profile cannot be read", said(reading.trouble))
        return
    profile = reading.content
    if profile["state"] == UNDER_WAY:
        st.fragment(lambda: _open_when_over(name), run_every=REFRESH_SECONDS)()
    st.markdown(f"#### {escape(name)}: {escape(str(profile['state']))}")
    _files(profile)
    for part in profile["parts"]:
        if part["error"]:
            st.warning(f"{escape(str(part['role']))} (pid {part['pid']}) gave nothing: {said(str(part['error']))}")
    if profile["operators"]:
        operator_tables(profile["operators"])
    if profile["samples"]:
        sample_tables(profile)


def _path(name: str) -> str:
    return f"/inspect/profiles/{quote(name, safe='')}"


def _open_when_over(name: str) -> None:
    """Draws the page anew once the profile is no longer under way."""
    reading = current().get(_path(name))
    st.empty()
    if reading.is_there and reading.content["state"] != UNDER_WAY:
        st.rerun()


def _files(profile: dict[str, Any]) -> None:
    place = PREFIX + _path(profile["profile"])
    links = [
        f"[{escape(file['name'])}]({place}/{quote(file['name'], safe='')}) {size(file['num_bytes'])}"
        for file in profile["files"]
    ]
    if links:
        st.markdown("Download: " + " · ".join(links))
        st.caption(
            "A `.trace.json.gz` opens at ui.perfetto.dev (Open trace file), `.speedscope.json` at speedscope.app."
        )
    else:
        st.caption("No file has been written.")
