"""The closed set of what a verdict can name, the weightiest first, and its words where it names nothing."""

from typing import Final

NO_ENGINE: Final[tuple[str, ...]] = ("engine_dead", "restarting")
"""With one of these nothing is computed: what a dead engine waited for helps nobody."""
STATES: Final[tuple[str, ...]] = (*NO_ENGINE, "engine_down", "draining", "stalled_server")
"""Findings of how it is at this moment, whatever the window."""
FINDINGS: Final[tuple[str, ...]] = (
    *STATES,
    "stalled_rank",
    "paused",
    "preemption_storm",
    "kv_pressure",
    "max_num_seqs",
    "token_budget",
    "long_prefill",
    "grammar_wait",
    "remote_kv_wait",
    "lora_slots",
    "priority",
    "slow_frontend",
    "worker_slow",
    "late_first_tokens",
)

IDLE: Final = "idle"
WELL: Final = "well"
CANNOT_TELL: Final = "cannot_tell"
METRIC_WINDOW: Final = "1m"
"""The window that the gauge `vllm_obs_verdict` is about."""
