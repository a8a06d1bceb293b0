"""Capacity: how much of each of an engine's limits was used in a window, and what raising it would come to."""

import math

from vllm_obs.telemetry.verdict_tally import during
from vllm_obs.telemetry.verdict_window import WindowFacts

USED_UP = 0.85
"""A limit of which at least this much is used is not said to be no help."""
SELDOM = 0.1
"""Nor is one that was binding for more of the time than this."""
ROUND_TENTHS = (10, 12.5, 15, 20, 25, 30, 40, 50, 60, 80, 100)
"""Advice is rounded to these times a power of ten: it stays the same from look to look."""
BLOCKS, SEQS, TOKENS = "blocks", "seqs", "tokens"
LIMITS = ("max_num_seqs", "kv_blocks", "max_num_batched_tokens")
"""The figures that an engine says of itself."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Capacity:
    """Means over the time in which a condition held (one of the tally's), stalls left out.

    Zeros where it did not hold. An engine that nobody described has limits of 0, which are not told as evidence.
    """

    def __init__(self, facts: WindowFacts, condition: str) -> None:
        described = facts.described
        self._facts = facts
        self.num_waiting = facts.mean_during(condition, "waiting")
        self.num_running = facts.mean_during(condition, "running")
        self.num_active_blocks = facts.mean_during(condition, "active")
        self.tokens_per_step = facts.ratio(during("tokens", condition), during("steps", condition))
        self.num_blocks = described.num_blocks if described else 0
        self.max_num_seqs = described.max_num_seqs if described else 0
        self.budget = described.max_num_batched_tokens if described else 0
        self._kv_bytes = described.kv_cache_bytes if described else 0
        self._has_override = bool(described and described.num_blocks_override)

    @property
    def blocks_use(self) -> float:
        """The share of the KV blocks that running sequences hold."""
        return self.num_active_blocks / self.num_blocks if self.num_blocks else 0.0

    @property
    def seqs_use(self) -> float:
        """The share of the places for running sequences that are taken."""
        return self.num_running / self.max_num_seqs if self.max_num_seqs else 0.0

    @property
    def tokens_use(self) -> float:
        """The share of the token budget that steps use."""
        return self.tokens_per_step / self.budget if self.budget else 0.0

    @property
    def blocks_per_sequence(self) -> float:
        """KV blocks that one running sequence holds."""
        return self.num_active_blocks / self.num_running if self.num_running else 0.0

    def blocks_wanted(self, growth: float = 1.0) -> int:
        """KV blocks that would hold those who wait as well, as far as there are places for them.

        `growth` is how many times what they hold now sequences will hold. At least a quarter more than there is.
        """
        num_more = min(self.num_waiting, max(0.0, self.max_num_seqs - self.num_running))
        wanted = (self.num_active_blocks + num_more * self.blocks_per_sequence) * growth
        return round_up(max(wanted, 1.25 * self.num_blocks))

    def seqs_wanted(self) -> int:
        """Places for those who wait as well, as far as there are KV blocks; four times as many at most."""
        wanted = min(round_up(self.num_running + max(1.0, self.num_waiting)), 4 * self.max_num_seqs)
        each = self.blocks_per_sequence
        return min(wanted, round_down(self.num_blocks / each)) if each else wanted

    def more_blocks(self, growth: float = 1.0) -> str:
        """The flags for a larger cache, with numbers."""
        wanted = self.blocks_wanted(growth)
        size = f"--kv-cache-memory-bytes from {_size(self._kv_bytes)} to about {_size(self._bytes_of(wanted))}"
        if self._has_override:
            return (
                f"raise --num-gpu-blocks-override from {self.num_blocks} to about {wanted} (or drop it), or {size}"
            )
        return f"raise {size} ({self.num_blocks} to about {wanted} blocks), or --gpu-memory-utilization"

    def useless(self, *names: str) -> tuple[str, ...]:
        """Why it would not help to raise these limits, of those that are far from used up and seldom binding."""
        return tuple(self._useless_words(name) for name in names if self._is_useless(name))

    def _is_useless(self, name: str) -> bool:
        use, binding, limit = {
            BLOCKS: (self.blocks_use, "kv_ns", self.num_blocks),
            SEQS: (self.seqs_use, "seqs_ns", self.max_num_seqs),
            TOKENS: (self.tokens_use, "budget_ns", self.budget),
        }[name]
        return limit > 0 and use < USED_UP and self._facts.share_of_work(binding) < SELDOM

    def _useless_words(self, name: str) -> str:
        return {
            BLOCKS: f"more KV blocks: {percent(self.blocks_use)} of the {self.num_blocks} are held",
            SEQS: f"raising --max-num-seqs: {self.num_running:.1f} of {self.max_num_seqs} run",
            TOKENS: f"raising --max-num-batched-tokens: steps use {percent(self.tokens_use)} of it",
        }[name]

    def evidence(self) -> dict[str, float | str]:
        """The figures, with their units."""
        figures = {
            "num_running_mean": self.num_running,
            "num_waiting_mean": self.num_waiting,
            "max_num_seqs": float(self.max_num_seqs),
            "kv_blocks_held_mean": self.num_active_blocks,
            "kv_blocks": float(self.num_blocks),
            "tokens_per_step_mean": self.tokens_per_step,
            "max_num_batched_tokens": float(self.budget),
        }
        unknown = () if self._facts.described is not None else LIMITS
        return {name: figure for name, figure in figures.items() if name not in unknown}

    def _bytes_of(self, num_blocks: int) -> int:
        return round(self._kv_bytes * num_blocks / self.num_blocks) if self.num_blocks else 0


def percent(share: float) -> str:
    """A share for people: 0.034 is 3.4 %, 0.72 is 72 %."""
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def round_up(number: float) -> int:
    """To a round number, upwards: 27 is 30, 625 is 800. Numbers up to ten stay."""
    if number <= 10:
        return math.ceil(number)
    return math.ceil(next(each for each in _round_numbers(number) if each >= number))


def round_down(number: float) -> int:
    """To a round number, downwards: 27 is 25, 625 is 600. Numbers up to ten stay."""
    if number <= 10:
        return int(number)
    return int([each for each in _round_numbers(number) if each <= number][-1])


def _round_numbers(number: float) -> list[float]:
    scale = 10 ** (len(str(int(number))) - 2)
    return [tenths * scale for tenths in ROUND_TENTHS]


def _size(num_bytes: int) -> str:
    """As the flag takes it: 512M, 40G."""
    if num_bytes >= 10 * GIB:
        return f"{num_bytes / GIB:.0f}G"
    if num_bytes >= 10 * MIB:
        return f"{num_bytes / MIB:.0f}M"
    return f"{max(1, round(num_bytes / KIB))}K"
