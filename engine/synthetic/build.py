"""Which synthetic worker an executor gets, and whom it meets."""

from collections.abc import Callable
from pathlib import Path

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.synthetic.rank_meeting import RankMeeting
from vllm_obs.engine.synthetic.worker import SyntheticWorker, alone


def make_synthetic_worker(config: VllmConfig, rank: int, on_layer: Callable[[], None]) -> SyntheticWorker:
    """The worker of one rank. Those of one host meet in its run directory; without one they do not wait."""
    num_ranks = config.parallel.world_size // config.parallel.nnodes
    meet = alone
    if num_ranks > 1 and config.run_dir:
        path = Path(config.run_dir) / f"synthetic-{config.generation}.ranks"
        meet = RankMeeting(path, rank % num_ranks, num_ranks).meet
    return SyntheticWorker(config, rank, on_layer, meet=meet)
