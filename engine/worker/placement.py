"""Where a rank runs on its host: its own cores, or its own GPU."""

import os
from dataclasses import dataclass

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.worker.host import usable_cores


@dataclass(frozen=True)
class Placement:
    """The number of a rank among all that this run has on this host, those of other engines included."""

    local_rank: int
    num_local_ranks: int


def placement(config: VllmConfig, rank: int) -> Placement:
    """Ranks are spread over hosts in equal runs. Where somebody else balances, the other engines are not known."""
    parallel = config.parallel
    num_each = parallel.world_size // parallel.nnodes
    owns_all = parallel.data_parallel_rank is None
    num_engines, engine = (parallel.data_parallel_size, config.engine_index) if owns_all else (1, 0)
    return Placement(engine * num_each + rank % num_each, num_engines * num_each)


def core_share(place: Placement) -> int:
    """How many of the host's cores are a rank's, at least 1."""
    return max(1, usable_cores() // place.num_local_ranks)


def bind_cores(place: Placement) -> None:
    """Keep this process to its share of the cores, which no other rank has; nothing where there are not enough.

    To be called before torch is loaded: that takes the number of its threads from what it is allowed then.
    """
    if place.num_local_ranks == 1 or usable_cores() < place.num_local_ranks:
        return
    share = core_share(place)
    own = sorted(os.sched_getaffinity(0))[place.local_rank * share :][:share]
    os.sched_setaffinity(0, own)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
