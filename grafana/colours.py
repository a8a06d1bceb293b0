"""The colours of series by their names: those of the inspector, under the words that the metrics use."""

from vllm_obs.dashboard.palette import BLOCK_COLOURS, LEVEL_COLOURS, PHASE_COLOURS, STAGE_COLOURS, TOKEN_COLOURS

IDLE = "#f1f3f5"
"""Close to white, which is idle, and still seen on a white page."""

STAGES = STAGE_COLOURS
PHASES = {phase: PHASE_COLOURS[phase] for phase in ("schedule", "prepare", "forward", "sample", "update")} | {
    "other": PHASE_COLOURS["unknown"],
    "idle": IDLE,
}
BLOCKS = BLOCK_COLOURS
ENDINGS = {
    "stop": STAGE_COLOURS["decode"],
    "length": STAGE_COLOURS["prefill"],
    "abort": LEVEL_COLOURS["warning"],
    "error": LEVEL_COLOURS["bad"],
    "repetition": STAGE_COLOURS["submit"],
}
STATUSES = {
    "2xx": LEVEL_COLOURS["good"],
    "3xx": LEVEL_COLOURS["unknown"],
    "4xx": LEVEL_COLOURS["warning"],
    "5xx": LEVEL_COLOURS["bad"],
}
LOAD = {"running": STAGE_COLOURS["decode"], "waiting": STAGE_COLOURS["queue"]}
WAITING = {"capacity": STAGE_COLOURS["queue"], "deferred": STAGE_COLOURS["submit"]}
TOKENS = {"prompt": TOKEN_COLOURS["prefill"], "generated": TOKEN_COLOURS["decode"]}
SOURCES = {
    "local_compute": TOKEN_COLOURS["prefill"],
    "local_cache_hit": TOKEN_COLOURS["cached"],
    "external_kv_transfer": STAGE_COLOURS["submit"],
}
LOST = {"thrown away": STAGE_COLOURS["preempted"], "computed again": STAGE_COLOURS["recompute"]}
BUSY = {"busy": STAGE_COLOURS["decode"], "idle": IDLE}
LIMITS = {
    "underloaded": IDLE,
    "kv_blocks": STAGE_COLOURS["queue"],
    "preemption": STAGE_COLOURS["preempted"],
    "max_num_seqs": STAGE_COLOURS["stalled"],
    "token_budget": STAGE_COLOURS["prefill"],
    "prefill_share": TOKEN_COLOURS["cached"],
    "priority": STAGE_COLOURS["return"],
    "paused": STAGE_COLOURS["receive"],
    "waiting_on_grammar": STAGE_COLOURS["submit"],
    "waiting_on_remote_kv": STAGE_COLOURS["deliver"],
    "lora_slots": STAGE_COLOURS["detokenize"],
    "other": LEVEL_COLOURS["unknown"],
}
"""What kept steps from taking in more."""
