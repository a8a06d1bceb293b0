"""All servers that the pages are over, side by side, and the choice of the one that they show."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, number, share
from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.source import Source, current, servers

ROW_PIXELS, EDGE_PIXELS = 35, 2
VERDICT_WINDOW = "1m"

Row = dict[str, Any]


def server_selector() -> None:
    """The choice, where there is one; it stands in the address."""
    names = [server.name for server in servers()]
    if len(names) < 2:
        return

    def choose() -> None:
        if (chosen := st.session_state.get("server-choice")) in names:
            url_state.forget_place()
            url_state.put(server=names.index(chosen))

    st.session_state["server-choice"] = current().name
    st.segmented_control("Server", names, key="server-choice", on_change=choose, format_func=escape)


def server_table() -> None:
    """A row for each server, where there are several."""
    found = servers()
    rows = [_row(server) for server in found]
    st.dataframe(
        {name: [row[name] for row in rows] for name in rows[0]},
        hide_index=True,
        height=ROW_PIXELS * (len(rows) + 1) + EDGE_PIXELS,
        key="servers",
    )


def _row(server: Source) -> Row:
    state, verdict = server.get("/inspect/state"), server.get("/inspect/verdict", window=VERDICT_WINDOW)
    row: Row = {"Server": server.name, "Health": "no answer", "Verdict": NOTHING}
    if not state.is_there or state.trouble:
        return row | dict.fromkeys(("Engines", "Running", "Waiting", "KV in use", "Tokens out /s"), NOTHING)
    engines = state.content["engines"]
    num_blocks = sum(engine["blocks"]["num_blocks"] for engine in engines)
    num_active = sum(engine["blocks"]["num_active"] for engine in engines)
    return row | {
        "Health": state.content["health"]["word"],
        "Verdict": verdict.content["word"].replace("_", " ") if verdict.is_there else NOTHING,
        "Engines": number(len(engines)),
        "Running": number(sum(engine["num_running"] for engine in engines)),
        "Waiting": number(sum(engine["num_waiting"] for engine in engines)),
        "KV in use": share(num_active / num_blocks) if num_blocks else NOTHING,
        "Tokens out /s": number(state.content["throughput"]["10s"].get("output_tokens_per_second")),
    }
