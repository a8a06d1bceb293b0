"""Regimes: loads that each show one thing that can hold an engine up, all made for one set of limits."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ACCOUNTS = ("team-red", "team-green", "team-blue")
"""Whose requests they are, in turns of chance."""

Span = tuple[int, int]
"""The least and the most, both possible."""


class SyntheticLimits(NamedTuple):
    """The size of an engine: its KV cache, and what one step and one sequence may hold."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


SYNTHETIC_LIMITS = SyntheticLimits(
    num_blocks=512, block_size=16, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=8192
)
"""The one size of engine that all regimes are made for, with a StepTimeModel as it stands."""


class Arrival(NamedTuple):
    """One request: when it comes after the start, and how long it is.

    `prefix` names what its prompt begins with, empty where it shares nothing; `account` says whose it is.
    """

    at_seconds: float
    num_prompt_tokens: int
    max_tokens: int
    prefix: str
    account: str


@dataclass(frozen=True)
class Stream:
    """Requests of one kind: `burst` come together, and after a gap as many again.

    A gap is `gap_seconds` long, or with `is_regular` False from half to one and a half of that. All that is
    drawn is drawn evenly.
    """

    gap_seconds: float
    num_prompt_tokens: Span
    max_tokens: Span
    burst: Span = (1, 1)
    first_seconds: float = 0.0
    is_regular: bool = False
    prefixes: tuple[str, ...] = ("",)

    def arrivals(self, rng: random.Random, seconds: float) -> list[Arrival]:
        """What comes in so many seconds, in order."""
        found: list[Arrival] = []
        at_seconds = self.first_seconds
        while at_seconds < seconds:
            found += [self._arrival(rng, at_seconds) for _ in range(rng.randint(*self.burst))]
            at_seconds += self.gap_seconds * (1.0 if self.is_regular else rng.uniform(0.5, 1.5))
        return found

    def _arrival(self, rng: random.Random, at_seconds: float) -> Arrival:
        lengths = rng.randint(*self.num_prompt_tokens), rng.randint(*self.max_tokens)
        return Arrival(at_seconds, *lengths, rng.choice(self.prefixes), rng.choice(ACCOUNTS))


class Stall(NamedTuple):
    """The last rank stands still from `at_seconds` on, for so many seconds."""

    at_seconds: float
    seconds: float


@dataclass(frozen=True)
class Regime:
    """A load by name, with one sentence on what it shows. `stall_every` 0 is never."""

    name: str
    says: str
    streams: tuple[Stream, ...]
    stall_every_seconds: float = 0.0
    stall_seconds: float = 0.0

    def arrivals(self, rng: random.Random, seconds: float) -> list[Arrival]:
        """The requests of so many seconds, in order; the same for the same `rng`."""
        found = [arrival for stream in self.streams for arrival in stream.arrivals(rng, seconds)]
        return sorted(found, key=lambda arrival: arrival.at_seconds)

    def stalls(self, seconds: float) -> list[Stall]:
        """When a rank stands still in so many seconds; each is over before they are."""
        if not self.stall_every_seconds:
            return []
        found: list[Stall] = []
        # A short time has one too, in its middle.
        at_seconds = min(self.stall_every_seconds / 3, max(0.0, (seconds - self.stall_seconds) / 2))
        while at_seconds + self.stall_seconds < seconds:
            found.append(Stall(at_seconds, self.stall_seconds))
            at_seconds += self.stall_every_seconds
        return found


_CALM = Stream(gap_seconds=0.6, num_prompt_tokens=(24, 120), max_tokens=(16, 48), prefixes=("", "", "system"))

_ALL = (
    Regime("calm", "few short requests: nobody waits", (_CALM,)),
    Regime(
        "kv_pressure",
        "long prompts fill the KV cache: the next one waits for blocks",
        (Stream(1.9, (960, 1920), (180, 220), burst=(1, 3)), Stream(1e9, (960, 1920), (180, 220), burst=(9, 9))),
    ),
    Regime(
        "token_budget",
        "many prompts, short answers: every step is full of tokens",
        (Stream(0.4, (640, 960), (2, 4), burst=(2, 6)), Stream(1e9, (640, 960), (2, 4), burst=(12, 12))),
    ),
    Regime(
        "preemption_storm",
        "short prompts, long answers: all are let in, grow, and take each other's blocks",
        (Stream(17.0, (24, 40), (560, 640), burst=(29, 31), is_regular=True),),
    ),
    Regime(
        "long_prefill",
        "now and then a prompt of very many chunks, which delays everybody's tokens",
        (_CALM, Stream(3.0, (5200, 6400), (8, 16), first_seconds=1.5, is_regular=True)),
    ),
    Regime(
        "stalled_rank",
        "a calm load, and one rank that stands still for seconds",
        (_CALM, Stream(3.0, (24, 60), (190, 230), is_regular=True)),
        stall_every_seconds=20.0,
        stall_seconds=6.0,
    ),
    Regime(
        "max_num_seqs",
        "many small requests that take their time: no more may run at once",
        (Stream(1.05, (12, 24), (120, 160), burst=(8, 14)), Stream(1e9, (12, 24), (120, 160), burst=(24, 24))),
    ),
)
REGIMES: dict[str, Regime] = {regime.name: regime for regime in _ALL}
"""Every regime by its name, in the order in which the demo shows them."""

MakeRandom = Callable[[str], random.Random]


def rng_of(regime: str, seed: int, round_number: int = 0) -> random.Random:
    """The source of chance of a regime's load: another one for each regime, seed and round."""
    return random.Random(f"{regime}/{seed}/{round_number}")


def blend(regimes: Sequence[str], seed: int, seconds: float) -> tuple[list[Arrival], list[Stall]]:
    """The arrivals of several regimes at once, in order, and all their stalls."""
    arrivals = [each for name in regimes for each in REGIMES[name].arrivals(rng_of(name, seed), seconds)]
    stalls = [each for name in regimes for each in REGIMES[name].stalls(seconds)]
    return sorted(arrivals, key=lambda arrival: arrival.at_seconds), sorted(stalls)
