"""The colours that mean something: one for each stage, state and level, the same on every page and in Grafana.

White (the background) is idle; red and its neighbours are waiting. All keep a contrast of 3:1 against a white and
a near-black page.
"""

STAGE_COLOURS: dict[str, str] = {
    "receive": "#8d99ae",
    "render": "#7a8ba8",
    "tokenize": "#6f7fa0",
    "submit": "#a08bb5",
    "queue": "#e5484d",
    "prefill": "#3b82f6",
    "decode": "#2f9e6e",
    "preempted": "#c2255c",
    "recompute": "#d97706",
    "stalled": "#f06a4d",
    "return": "#8b7fc7",
    "detokenize": "#7c6fb0",
    "deliver": "#5b8fb0",
}
"""Stage of a request → colour."""

TOKEN_COLOURS: dict[str, str] = {
    "prefill": STAGE_COLOURS["prefill"],
    "decode": STAGE_COLOURS["decode"],
    "recompute": STAGE_COLOURS["recompute"],
    "cached": "#7c9cc9",
}
"""What the tokens of a step are for → colour; cached ones cost nothing, and are drawn hatched."""

PHASE_COLOURS: dict[str, str] = {
    "schedule": "#8b7fc7",
    "ipc": "#a08bb5",
    "prepare": "#5b8fb0",
    "forward": "#2f9e6e",
    "sample": "#c49a1a",
    "update": "#7a8ba8",
    "unknown": "#868e96",
}
"""Part of a step → colour. Idle is white: nothing is drawn."""

BLOCK_COLOURS: dict[str, str] = {"active": "#2f9e6e", "cached": "#7c9cc9", "free": "#868e9633"}
"""State of a KV block → colour."""

LEVEL_COLOURS: dict[str, str] = {"good": "#2f9e6e", "warning": "#d97706", "bad": "#e5484d", "unknown": "#868e96"}
"""How well something is → colour."""

REQUEST_COLOURS: tuple[str, ...] = (
    "#3b82f6", "#2f9e6e", "#d97706", "#8b7fc7", "#0ea5b7", "#c2255c", "#7a9a01", "#b8651b",
    "#5b8fb0", "#9d4edd", "#20894d", "#c49a1a", "#4c6ef5", "#d6336c", "#0b7285", "#a08bb5",
)  # fmt: skip
"""Requests are told apart by one of these, chosen by their number."""
