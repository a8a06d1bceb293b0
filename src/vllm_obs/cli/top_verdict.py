"""The verdict in `vllm-obs top`: the headline at the very top, and the evidence where there is room."""

import textwrap
from collections.abc import Iterator
from typing import Any

from vllm_obs.cli.top_cells import DIM, GREEN, RED, RESET, YELLOW
from vllm_obs.telemetry.verdict_names import CANNOT_TELL, STATES

MAX_HEADLINES = 3
_COLOURS = {"none": GREEN, "warning": YELLOW, "severe": RED}


def verdict_lines(verdict: dict[str, Any], columns: int) -> Iterator[str]:
    """The headline with its window, in colour by how bad it is; nothing where no verdict was asked for."""
    if not verdict:
        return
    colour = DIM if verdict["word"] == CANNOT_TELL else _COLOURS.get(verdict["severity"], YELLOW)
    is_of_window = verdict["word"] not in (CANNOT_TELL, *STATES)
    window = f"In the last {verdict['window_seconds']} s: " if is_of_window else ""
    says = textwrap.wrap(window + verdict["says"], max(20, columns), max_lines=MAX_HEADLINES, placeholder=" …")
    yield from (f"{colour}{line}{RESET}" for line in says)


def verdict_evidence(verdict: dict[str, Any], columns: int) -> Iterator[str]:
    """Of each finding what would help and what would not; then how slow steps are against the least seen."""
    if not verdict:
        return
    for finding in verdict["findings"]:
        helps, useless = "; or ".join(finding["helps"]), "; ".join(finding["helps_not"])
        for word, text in (("helps", helps), ("helps not", useless)):
            if text:
                yield from _indented(f"{finding['name']}  {word}: {text}", columns)
    floor = verdict["floor"]
    if floor["p50"] is not None:
        times = f"{floor['p50']:.2f} times the least time seen for as much work"
        yield f"{DIM}  half of the steps take at most {times}{RESET}"


def _indented(text: str, columns: int) -> Iterator[str]:
    lines = textwrap.wrap(text, max(20, columns - 4), max_lines=2, placeholder=" …")
    yield from (f"{DIM}  {line}{RESET}" for line in lines)
