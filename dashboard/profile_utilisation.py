"""How much of what the machine can do is used: arithmetic and reading against what was measured, in words too."""

from html import escape as escape_html
from typing import Any, NamedTuple

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.drawing import Part, stacked_bar
from vllm_obs.dashboard.figures import NOTHING, number, seconds, share
from vllm_obs.dashboard.frame import escape, said
from vllm_obs.dashboard.palette import PHASE_COLOURS, TOKEN_COLOURS
from vllm_obs.dashboard.source import current

TITLE = "##### How much of the machine is used"
TEACH = (
    "At the end of its start each worker measures what its machine can do at best. There is nothing to compare "
    "with yet: the server is still starting, is of an older version, or could not measure (its log says so)."
)


class Card(NamedTuple):
    """A kind of limit: the name of the share, of the amount, its unit, and what was timed to find the limit."""

    title: str
    name: str
    amount: str
    unit: str
    timed: str


CARDS = (
    Card("Arithmetic (MFU)", "mfu", "flops", "FLOP/s", "matrix products"),
    Card("Memory (MBU)", "mbu", "bytes", "B/s", "reading"),
)
_ROWS = (
    ("worker", "while workers work", PHASE_COLOURS["forward"]),
    ("decode", "decode steps", TOKEN_COLOURS["decode"]),
    ("prefill", "steps with a prompt", TOKEN_COLOURS["prefill"]),
    ("wall", "all the time", PHASE_COLOURS["unknown"]),
)
_GRID = "display:grid;grid-template-columns:9.5em 1fr 3.4em 7.5em;gap:5px 10px;align-items:center;font-size:0.9em"
_FOOT = "font-size:0.86em;opacity:.8;margin-top:6px"


def utilisation_panel() -> None:
    """Two cards, the sentence, and what was counted."""
    window = url_state.window() if url_state.window() != "run" else "5m"
    reading = current().get("/inspect/utilisation", engine=url_state.engine(), window=window)
    document = reading.content or {}
    st.markdown(f"{TITLE}, last {window}" if document else TITLE)
    for place, card in zip(st.columns(2), CARDS, strict=True):
        with place, st.container(border=True):
            st.html(_card(card, document))
    st.markdown(said(document["sentence"]) if document.get("limits") else TEACH)
    st.caption(_caption(document))


def _card(card: Card, document: dict[str, Any]) -> str:
    rates = {**document.get("kinds", {}), "worker": document.get("worker"), "wall": document.get("wall")}
    rows = "".join(_row(card, rates.get(key) or {}, words, colour) for key, words, colour in _ROWS)
    head = f"<b>{escape_html(card.title)}</b> {share((rates['worker'] or {}).get(card.name))}"
    return (
        f'<div style="margin-bottom:6px">{head}</div><div class="tabular" style="{_GRID}">{rows}</div>'
        f'<div class="tabular" style="{_FOOT}">{escape_html(_limit(card, document))}</div>'
    )


def _row(card: Card, rates: dict[str, Any], words: str, colour: str) -> str:
    part, reached = rates.get(card.name), rate(rates.get(f"{card.amount}_per_second"), card.unit)
    bar = stacked_bar([Part(words, part or 0.0, colour, f"{words} {share(part)}")], card.title, 13)
    figures = "".join(
        f"<span style='text-align:right'>{escape_html(each)}</span>" for each in (share(part), reached)
    )
    return f"<span>{escape_html(words)}</span>{bar}{figures}"


def _limit(card: Card, document: dict[str, Any]) -> str:
    limits = document.get("limits") or {}
    limit = limits.get(f"{card.amount}_per_second")
    if limit is None:
        return "The limit is not known"
    if limits["was_exceeded"][card.amount]:
        return f"Limit {rate(limit, card.unit)}: of the best step, which did more than was measured at the start"
    return f"Limit {rate(limit, card.unit)}: the best {card.timed} measured at the start"


def _caption(document: dict[str, Any]) -> str:
    if not document.get("num_steps"):
        return NOTHING
    parts = {escape(name): part for name, part in document["phases"].items() if part is not None}
    phases = ", ".join(f"{name} {share(part)}" for name, part in parts.items())
    ranks = f"on {document['num_ranks']} ranks " if document["num_ranks"] > 1 else ""
    took = f"{number(document['num_steps'])} steps took {ranks}{seconds(document['worker']['seconds'])}"
    return f"{took}: {phases}. {said(document['caveat'])}"


def rate(value: float | None, unit: str) -> str:
    """So much a second with three digits, in decimal units: 98.6 GFLOP/s, 1.25 TB/s."""
    if value is None:
        return NOTHING
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if value >= size:
            figure = value / size
            return f"{figure:.{max(0, 2 - (figure >= 10) - (figure >= 100))}f} {prefix}{unit}"
    return f"0 {unit}"
