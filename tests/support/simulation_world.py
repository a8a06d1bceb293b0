"""What one simulated history draws from its seed: the sizes of its engine, and how often what goes wrong."""

from dataclasses import dataclass
from random import Random

from pipelined_executor import pipelined

from vllm_obs.engine.config import VllmConfig

MS = 1_000_000


@dataclass(frozen=True)
class Faults:
    """How often each step, row or message meets a fault; `num_kills` and `num_pauses` are a history's.

    `poison` is raised in the scheduler, by the worker no answer is given to `silent` rows, `nan` rows have no
    numbers; `failing` steps raise, `dead` ones end the engine. `stray` messages are old ones again, or broken.
    """

    failing: float = 0.0
    dead: float = 0.0
    nan: float = 0.0
    silent: float = 0.0
    poison: float = 0.0
    grammar: float = 0.0
    stray: float = 0.0
    num_kills: int = 0
    num_pauses: int = 0


@dataclass(frozen=True)
class World:
    """One history's sizes. Moments are ns; `abort` is the share of steps after which somebody leaves.

    `max_queued` and `max_queued_tokens` bound the queue (None: nothing does), `max_live` all that the core holds.
    With several `num_stages` as many steps may be in flight; where the core `is_ahead`, two.
    """

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool
    max_num_seqs: int
    budget: int
    is_chunked: bool
    policy: str
    max_model_len: int
    num_stages: int
    num_clients: int
    num_requests: int
    max_queued: int | None
    max_queued_tokens: int | None
    max_live: int
    arrival_ns: int
    max_delay_ns: int
    abort: float
    faults: Faults
    is_ahead: bool = False

    @property
    def config(self) -> VllmConfig:
        """As the engine is given it."""
        return pipelined(
            self.num_stages,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_num_mixed_prefill_tokens=(None, 1, 3, 8)[self.num_requests % 4],
            mixed_prefill_tokens_a_decode=self.num_blocks % 3,
            enable_chunked_prefill=self.is_chunked,
            policy=self.policy,
            max_num_queued_reqs=self.max_queued,
            max_num_queued_tokens=self.max_queued_tokens,
            async_scheduling=self.is_ahead,
        )

    @property
    def num_slots(self) -> int:
        """The tokens that the whole cache holds."""
        return self.num_blocks * self.block_size


def drawn_world(draw: Random) -> World:
    """A small pool more often than not, so that histories are full of preemptions."""
    max_model_len = draw.choice((16, 24, 40))
    is_chunked = draw.random() < 0.85
    return World(
        num_blocks=draw.randint(3, 16),
        block_size=draw.choice((1, 2, 4)),
        enable_prefix_caching=draw.random() < 0.8,
        max_num_seqs=draw.randint(1, 8),
        budget=draw.randint(1, 14) if is_chunked else max_model_len,
        is_chunked=is_chunked,
        policy=draw.choice(("fcfs", "fcfs", "priority")),
        max_model_len=max_model_len,
        num_stages=draw.choice((1, 1, 1, 2, 3)),
        num_clients=draw.choice((1, 1, 2)),
        num_requests=draw.randint(5, 24),
        max_queued=draw.randint(0, 5) if draw.random() < 0.3 else None,
        max_queued_tokens=draw.randint(10, 80) if draw.random() < 0.2 else None,
        max_live=draw.randint(3, 6) if draw.random() < 0.1 else 1000,
        arrival_ns=draw.choice((0, 0, 1, 4)) * MS,
        max_delay_ns=draw.choice((0, 1, 8)) * MS,
        abort=draw.choice((0.0, 0.05, 0.2)),
        faults=_drawn_faults(draw),
    )


def _drawn_faults(draw: Random) -> Faults:
    """Nothing goes wrong in a quarter of all histories."""

    def sometimes(rate: float) -> float:
        return rate if draw.random() < 0.3 else 0.0

    if draw.random() < 0.25:
        return Faults()
    return Faults(
        failing=sometimes(0.08),
        dead=sometimes(0.01),
        nan=sometimes(0.04),
        silent=sometimes(0.02),
        poison=sometimes(0.1),
        grammar=sometimes(0.3),
        stray=sometimes(0.1),
        num_kills=draw.randint(1, 2) if draw.random() < 0.3 else 0,
        num_pauses=draw.randint(1, 2) if draw.random() < 0.2 else 0,
    )
