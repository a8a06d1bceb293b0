"""Why a sequence is left out of a step, and how far scheduling is paused: closed sets of words."""

from enum import IntEnum
from typing import Literal

WaitReason = Literal[
    "max_num_seqs",
    "token_budget",
    "kv_blocks",
    "grammar",
    "lora_slots",
    "remote_kv",
    "priority",
    "paused",
    "step_in_progress",
    "head_of_line",
]


class PauseState(IntEnum):
    """What the scheduler may plan: everything, only what runs already, or nothing."""

    NONE = 0
    NO_ADMISSION = 1
    ALL = 2
