"""Suspect: a request that was open when an engine crashed, by its digest; and who of them stands out."""

from collections.abc import Iterable
from typing import NamedTuple

MAX_OPEN = 1024
"""Open requests that are looked at after a crash; where there were more, none of them stands out."""
SAME_CRASH_SECONDS = 1.0
"""What several API servers tell of a crash within so long they tell of the same one."""


class Suspect(NamedTuple):
    """`may_run` is False where all of its sequences waited to be run; `is_new`: one that ran had no output."""

    digest: bytes
    may_run: bool
    is_new: bool


def standing_out(suspects: Iterable[Suspect]) -> bytes | None:
    """Whom a crash must be due to, if to any request; None where that cannot be told."""
    running = [suspect for suspect in suspects if suspect.may_run]
    if len(running) == 1:
        return running[0].digest
    new = [suspect for suspect in running if suspect.is_new]
    return new[0].digest if len(new) == 1 else None
