"""CoreCounters: what a core did not do, by why."""

from dataclasses import dataclass


@dataclass
class CoreCounters:
    """What the core ignored, refused or lost since it started."""

    num_duplicate_adds: int = 0
    num_rejected_adds: int = 0
    num_unknown_aborts: int = 0
    num_wasted_rows: int = 0
    num_failed_requests: int = 0
    num_failed_steps: int = 0
