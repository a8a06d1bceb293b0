"""The verdict as a card: one sentence, what it rests on, what would help and what would not."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import number, seconds, share
from vllm_obs.dashboard.frame import escape, said

SEVERITY_BADGES = {"none": "green", "info": "blue", "warning": "orange", "severe": "red"}
CANNOT_TELL = "cannot_tell"
LINE_BREAK = "  \n"
MAX_LINES = 4
MAX_EVIDENCE = 6


def verdict_card(verdict: dict[str, Any]) -> None:
    """Draw it; of several findings the first is told in full, the others in a sentence each."""
    word = str(verdict["word"])
    is_known = word != CANNOT_TELL
    colour = SEVERITY_BADGES.get(str(verdict["severity"]), "gray") if is_known else "gray"
    covered = seconds(verdict["covered_seconds"])
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(escape(word.replace("_", " ")), color=colour)  # type: ignore[arg-type]
        st.caption(f"over the last {covered}")
    st.markdown(f"#### {said(str(verdict['says']))}")
    findings = verdict["findings"]
    first = findings[0] if findings else {}
    helps, helps_not, evidence = st.columns([5, 4, 4], gap="medium")
    with helps:
        st.markdown(_lines("What would help", first.get("helps", []), "Nothing is needed." if is_known else "–"))
    with helps_not:
        st.markdown(_lines("What would not", first.get("helps_not", []), "–"))
    with evidence:
        st.markdown(_lines("On which figures", _evidence(first.get("evidence", {})), "–"))
    st.caption(LINE_BREAK.join(_last_lines(verdict)))


def floor_words(verdict: dict[str, Any]) -> str:
    """How near the steps are to the best that was seen."""
    floor = verdict.get("floor") or {}
    return str(floor.get("says", ""))


def _last_lines(verdict: dict[str, Any]) -> list[str]:
    """What cannot be told, on a line of its own, and the other findings."""
    others = [said(str(finding["says"])) for finding in verdict["findings"][1:]]
    is_known = verdict["word"] != CANNOT_TELL  # the sentence is the doubt, where it is not
    doubts = "; ".join(said(str(doubt)) for doubt in verdict["cannot_tell"] if is_known)
    last = " ".join(["Also:", *others]) if others else said(floor_words(verdict))
    return [f"Cannot tell: {doubts}.", last] if doubts else [last]


def _evidence(evidence: dict[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} {_figure(name, value)}" for name, value in evidence.items()][:MAX_EVIDENCE]


def _figure(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name in ("pid", "rank"):
        return f"{value:.0f}"
    for ending, words in (("_share", share), ("_seconds", seconds)):
        if name.endswith(ending):
            return words(value)
    return number(value)


def _lines(title: str, lines: list[str], nothing: str) -> str:
    shown = [
        f"- {said(str(line))}" for line in lines[: MAX_LINES if title != "On which figures" else MAX_EVIDENCE]
    ]
    return "\n".join([f"**{title}**", "", *(shown or [said(nothing)])])
