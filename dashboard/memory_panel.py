"""Where memory is: the sentence and the room that is left first, a bar for each process, and the table."""

from html import escape
from typing import Any

import streamlit as st

from vllm_obs.dashboard.drawing import Part, legend, stacked_bar
from vllm_obs.dashboard.figures import NOTHING, share, size
from vllm_obs.dashboard.frame import said
from vllm_obs.dashboard.palette import REQUEST_COLOURS
from vllm_obs.dashboard.process_facts import name_of
from vllm_obs.dashboard.source import current

UNACCOUNTED = "unaccounted"
_COLOURS = {
    "weights": "#3b82f6",
    "kv_cache": "#2f9e6e",
    "activations": "#d97706",
    "libraries": "#8d99ae",
    "heap": "#8b7fc7",
    "rings": "#0ea5b7",
    "tokenizer": "#c49a1a",
    "stacks": "#b8651b",
    "queues": "#5b8fb0",
    "model_files": "#4c6ef5",
    UNACCOUNTED: "#868e9699",
}
TABLE_HEIGHT = 213

Row = dict[str, Any]


def memory_panel() -> None:
    """Draw it."""
    reading = current().get("/inspect/memory")
    view: Row = reading.content if reading.is_there else {}
    rows = view.get("processes", [])
    st.markdown(f"**{said(view['says'])}** {said(room_words(view))}" if view else NOTHING)
    st.html(_bars(rows) if rows else "<div>No process has been looked at.</div>")
    st.caption(said(" ".join(_notes(view))) or NOTHING)
    _table(rows)


def room_words(view: Row) -> str:
    """How much can still be taken, and of what; empty of a recording."""
    limits = view["limits"]
    if not limits:
        return ""
    group = limits["group_limit_bytes"]
    used = f"the control group may use {size(group)} and uses {size(limits['group_used_bytes'])}; "
    room, host = size(limits["headroom_bytes"]), size(limits["host_bytes"])
    return f"{room} can still be taken: {used if group else ''}the machine has {host}."


def _notes(view: Row) -> list[str]:
    if not view:
        return []
    return [*map(_cache, view["kv_cache"]), *view["hints"]]


def _cache(cache: Row) -> str:
    names = ("reserved", "resident", "active", "cached")
    reserved, resident, active, cached = (size(cache[f"{name}_bytes"]) for name in names)
    return (
        f"KV cache of engine {cache['engine']}: {reserved} reserved, {resident} in RAM; "
        f"sequences hold {active}, {cached} are cached."
    )


def parts_of(row: Row) -> list[tuple[str, int]]:
    """Part → bytes in RAM, weights and KV cache first, what nothing explains last."""
    known = sorted(((part["part"], part["bytes"]) for part in row["parts"]), key=lambda pair: _order(pair[0]))
    return [*known, (UNACCOUNTED, row["unaccounted_bytes"])]


def _order(part: str) -> int:
    names = list(_COLOURS)
    return names.index(part) if part in names else len(names)


def _bars(rows: list[Row]) -> str:
    """A bar for each, all on the scale of the largest."""
    largest = max(row["resident_bytes"] for row in rows)
    bars = "".join(
        '<div style="display:grid;grid-template-columns:230px minmax(0,1fr);gap:10px;align-items:center;'
        f'padding:2px 0;font-size:0.84rem"><div class="tabular"><b>{escape(name_of(row["role"]))}</b> '
        f"{size(row['resident_bytes'])}</div>{stacked_bar(_parts(row, largest), name_of(row['role']), 16)}</div>"
        for row in rows
    )
    seen = {part for row in rows for part, num_bytes in parts_of(row) if num_bytes}
    names = [Part(part, 0, _colour(part), part.replace("_", " ")) for part in _COLOURS if part in seen]
    return bars + legend(names)


def _parts(row: Row, largest: int) -> list[Part]:
    return [
        Part(part, num_bytes / largest, _colour(part), f"{part.replace('_', ' ')} {size(num_bytes)}")
        for part, num_bytes in parts_of(row)
    ]


def _colour(part: str) -> str:
    return _COLOURS.get(part, REQUEST_COLOURS[-1])


def _table(rows: list[Row]) -> None:
    """One line for each part of each process."""
    lines = [(row, part) for row in rows for part in row["parts"]]
    st.dataframe(
        {
            "Process": [name_of(row["role"]) for row, _ in lines],
            "Part": [part["part"].replace("_", " ") for _, part in lines],
            "In RAM": [size(part["bytes"]) for _, part in lines],
            "Of the process": [share(part["share"]) for _, part in lines],
            "Reserved": [size(part["allocated_bytes"]) for _, part in lines],
            "On the device": [_device(row, part["part"]) for row, part in lines],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="memory",
        placeholder=NOTHING,
    )


def _device(row: Row, part: str) -> str:
    return size(row["device_bytes"].get(part))
