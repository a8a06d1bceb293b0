"""How far scheduling is paused."""

from enum import IntEnum


class PauseState(IntEnum):
    """What the scheduler may plan: everything, only what runs already, or nothing."""

    NONE = 0
    NO_ADMISSION = 1
    ALL = 2
