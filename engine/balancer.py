"""LoadBalancer: which of several engines a request goes to, from what is known of their load."""

import random
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, Protocol, get_args

from vllm_obs.engine.errors import ConfigError, EngineDeadError

BalancerName = Literal["least_loaded", "power_of_two", "prefix_affine", "round_robin"]
BALANCER_NAMES: Final[tuple[BalancerName, ...]] = get_args(BalancerName)

WAITING_WEIGHT = 4
"""A waiting sequence costs a newcomer its whole prompt, a running one a row in each step."""
BOUND = 1.1
"""How far above the mean load, that of one more who waits included, the engine that has a prefix may be."""
MAX_PREFIX_TOKENS = 256
"""A prefix is told apart by so many of its tokens: a system prompt, not what a user adds to it."""


class EngineLoad(NamedTuple):
    """What is known of one engine: sequences that wait and run there by its last report, and those sent since."""

    num_waiting: int = 0
    num_running: int = 0
    num_in_flight: int = 0
    is_up: bool = True

    @property
    def cost(self) -> int:
        """A number to compare engines by. What was sent since the report is taken to wait."""
        return WAITING_WEIGHT * (self.num_waiting + self.num_in_flight) + self.num_running


class LoadBalancer(Protocol):
    """Chooses an engine for each request. Not for several threads."""

    def choose(self, loads: Sequence[EngineLoad], request_key: bytes) -> int:
        """The index in `loads` of an engine that is up; EngineDeadError when none is.

        Requests that share a prefix have the same key (`prefix_key`); it is empty where there is none.
        """


class LeastLoaded:
    """The engine with the least load; any of those that are equal.

    Which one is drawn, so that several clients, who know the same, do not all send to the same engine.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, loads: Sequence[EngineLoad], request_key: bytes) -> int:
        """See `LoadBalancer`."""
        up = _up(loads)
        least = min(loads[index].cost for index in up)
        return self._rng.choice([index for index in up if loads[index].cost == least])


class PowerOfTwo:
    """The less loaded of two engines drawn at random.

    M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12 (2001). Where reports
    are old or clients many it herds less than the least loaded of all does.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, loads: Sequence[EngineLoad], request_key: bytes) -> int:
        """See `LoadBalancer`."""
        up = _up(loads)
        if len(up) == 1:
            return up[0]
        one, other = self._rng.sample(up, 2)
        return one if loads[one].cost <= loads[other].cost else other


class PrefixAffine:
    """The engine a prefix belongs to, while its load is within a bound. Without a prefix: the least loaded.

    Each key has its own order of all engines (rendezvous hashing: D. Thaler, C. Ravishankar, IEEE/ACM ToN 6,
    1998), so that a loss of one moves only what was there. The first in it whose load is at most `BOUND` times the
    mean takes the request (V. Mirrokni, M. Thorup, M. Zadimoghaddam, Consistent Hashing with Bounded Loads,
    SODA 2018).
    """

    def __init__(self, rng: random.Random) -> None:
        self._least_loaded = LeastLoaded(rng)

    def choose(self, loads: Sequence[EngineLoad], request_key: bytes) -> int:
        """See `LoadBalancer`."""
        if not request_key:
            return self._least_loaded.choose(loads, request_key)
        up = _up(loads)
        mean = sum(loads[index].cost for index in up) / len(up)
        bound = BOUND * (mean + WAITING_WEIGHT)
        within = [index for index in up if loads[index].cost <= bound]
        return max(within, key=lambda index: _weight(request_key, index))


class RoundRobin:
    """One engine after the other, whatever their load."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last: int | None = None

    def choose(self, loads: Sequence[EngineLoad], request_key: bytes) -> int:
        """See `LoadBalancer`."""
        up, last = _up(loads), self._last
        begin = self._rng.choice(up) if last is None else last + 1
        self._last = next((index for index in up if index >= begin), up[0])
        return self._last


_POLICIES: Final[dict[BalancerName, Callable[[random.Random], LoadBalancer]]] = {
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "prefix_affine": PrefixAffine,
    "round_robin": RoundRobin,
}


def make_balancer(name: str, seed: int) -> LoadBalancer:
    """The policy of that name, or ConfigError. Clients of the same engines are to have different seeds."""
    for known, policy in _POLICIES.items():
        if known == name:
            return policy(random.Random(seed))
    raise ConfigError(f"load balancer {name:.64} is none of {', '.join(BALANCER_NAMES)}")


def prefix_key(token_ids: Sequence[int], cache_salt: str | None = None) -> bytes:
    """16 bytes that are the same for prompts with the same first tokens and salt."""
    first = array("q", token_ids[:MAX_PREFIX_TOKENS]).tobytes()
    return blake2b(first + repr(cache_salt).encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _up(loads: Sequence[EngineLoad]) -> list[int]:
    up = [index for index, load in enumerate(loads) if load.is_up]
    if not up:
        raise EngineDeadError(f"none of {len(loads)} engines is up")
    return up


def _weight(request_key: bytes, index: int) -> bytes:
    return blake2b(request_key, digest_size=8, salt=index.to_bytes(8, "little")).digest()
