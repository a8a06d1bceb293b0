"""The phases of the last steps, step by step."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.phase_chart import phase_chart
from vllm_obs.dashboard.drawing import Part, legend
from vllm_obs.dashboard.figures import seconds
from vllm_obs.dashboard.frame import note_trouble
from vllm_obs.dashboard.palette import PHASE_COLOURS
from vllm_obs.dashboard.source import current

NUM_STEPS = 240
MS = 1e6


def phases_panel() -> None:
    """Draw them, with the median of each phase in words."""
    reading = current().get("/inspect/steps", engine=url_state.engine(), limit=NUM_STEPS)
    note_trouble(reading)
    columns = reading.content["steps"] if reading.is_there else {"step": []}
    steps, phases = phases_of(columns)
    st.markdown("##### Where the time of a step goes" if steps else "##### No step has run yet: send a request")
    phase_chart(steps, phases, "phase-chart")
    medians = {name: _median(values) for name, values in phases.items()}
    st.html(
        legend(Part(name, 0, PHASE_COLOURS[name], f"{name} {seconds(ms / 1e3)}") for name, ms in medians.items())
    )
    st.caption("Medians of these steps. The lower red marks are steps longer than the scale." if steps else "–")


def phases_of(columns: dict[str, list[Any]]) -> tuple[list[int], dict[str, list[float]]]:
    """Milliseconds by phase of the steps that have answered; of several ranks the one that ended last.

    `ipc` is the way to the rank and back, `unknown` what lies between its parts.
    """
    answered = [place for place, at in enumerate(columns.get("updated_at", [])) if at is not None]
    rows = [_phases(columns, place) for place in answered]
    names = [name for name in PHASE_COLOURS if rows]
    return [columns["step"][place] for place in answered], {name: [row[name] for row in rows] for name in names}


def _phases(columns: dict[str, list[Any]], place: int) -> dict[str, float]:
    begun, planned = columns["schedule_begun_at"][place], columns["schedule_ended_at"][place]
    sampled, updated = columns["sampled_at"][place], columns["updated_at"][place]
    found = dict.fromkeys(PHASE_COLOURS, 0.0)
    found["schedule"], found["update"] = (planned - begun) / MS, (updated - sampled) / MS
    ranks = columns["ranks"][place]
    if not ranks:
        found["unknown"] = (sampled - planned) / MS
        return found
    _, received, prepared, forwarded, sampling, done = max(ranks, key=lambda rank: int(rank[-1]))
    found["ipc"] = max(0, received - planned + sampled - done) / MS
    found["prepare"], found["forward"] = (prepared - received) / MS, (forwarded - prepared) / MS
    found["sample"], found["unknown"] = (done - sampling) / MS, (sampling - forwarded) / MS
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
