"""GroupSetup: what one rank has to know to meet the others, and how it says that it has lost them."""

import os
from dataclasses import dataclass

from vllm_obs.engine.errors import VllmObsError

DEADLINE_SECONDS = 120.0
"""Below the executor's own deadline of a call, since this one can name the ranks that were waited for. Ranks that
have died are noticed at once: this is for those that stand still."""
MEETING_SECONDS = 300.0
SLOT_BYTES = 1 << 20
"""What shards put into shared memory at once."""
NUM_SLOTS = 2
LINE_BYTES = 64
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class GroupSetup:
    """A rank of how many, and where they meet: file://PATH for those of one host, tcp://ADDRESS:PORT for several.

    `own_address` is this host's, to which the others connect. `sums_fd` is memory in which shards of one host may
    exchange (`sums_bytes` for each stage), or -1. `deadline_seconds` is how long a shard may wait for another in
    an exchange (a stage for another half as long again), `meeting_seconds` how long for all to come.
    """

    rank: int = 0
    world_size: int = 1
    meeting: str = ""
    own_address: str = "127.0.0.1"
    deadline_seconds: float = DEADLINE_SECONDS
    meeting_seconds: float = MEETING_SECONDS
    sums_fd: int = -1


def header_bytes(num_shards: int) -> int:
    """Where the slots of so many shards begin in their shared memory."""
    return -(-num_shards * LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES


def sums_bytes(num_shards: int) -> int:
    """The shared memory of so many shards, in whole pages; it is taken as it is written."""
    return header_bytes(num_shards) + num_shards * NUM_SLOTS * SLOT_BYTES


def create_sums(num_stages: int, num_shards: int) -> int:
    """Memory in which the shards of each stage may exchange; it has no name to clean up, only this descriptor."""
    memory_fd = os.memfd_create("vllm-obs-sums", os.MFD_CLOEXEC)
    os.ftruncate(memory_fd, num_stages * sums_bytes(num_shards))
    return memory_fd


ALONE_SETUP = GroupSetup()


class PeerLostError(VllmObsError):
    """An exchange did not take place: at least one rank of `waited_for` has died, or did not come in time.

    The ranks are out of step then, and none of them can go on.
    """

    def __init__(self, message: str, waited_for: list[int]) -> None:
        super().__init__(message)
        self.waited_for = waited_for


class OutOfStepError(VllmObsError):
    """Something failed on this rank in the middle of a step, and the others wait for what will not come."""
