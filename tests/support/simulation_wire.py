"""The simulation's wires: each connection keeps its order, and no two of them keep any between each other."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from vllm_obs.engine.messages import RequestType

Frames = Sequence[bytes]

UTILITY = bytes([RequestType.UTILITY])
TO_ENGINE, FROM_ENGINE = "to engine", "from engine"


class Channel(NamedTuple):
    """One connection: to or from an engine's life, and whose."""

    direction: str
    client_index: int
    generation: int


class Events:
    """What happens when: a clock of ns, and what is due, in order of time and then of being ordered."""

    def __init__(self) -> None:
        self.now = 10**9
        self._due: list[tuple[int, int, str, Callable[[], None]]] = []
        self._num_ordered = 0

    def __len__(self) -> int:
        return len(self._due)

    def after(self, num_ns: int, name: str, act: Callable[[], None]) -> None:
        """Do it so much later."""
        self._num_ordered += 1
        heappush(self._due, (self.now + num_ns, self._num_ordered, name, act))

    def next(self) -> tuple[str, Callable[[], None]]:
        """The clock moves to what is due next."""
        moment, _, name, act = heappop(self._due)
        self.now = max(self.now, moment)
        return name, act

    def tick(self) -> int:
        """A look at the clock, which takes a microsecond."""
        self.now += 1_000
        return self.now


class Wire:
    """Brings messages after random times. One that is cut loses the last of what is under way.

    `kept` is some of what was sent, for who sends it again; no calls: a pause that comes again is another pause.
    """

    def __init__(self, events: Events, draw: Random, max_delay_ns: int) -> None:
        self._events = events
        self._draw = draw
        self._max_delay_ns = max_delay_ns
        self._free_at: dict[Channel, int] = {}
        self._lost_from: dict[Channel, int] = {}
        self._num_sent = 0
        self.kept: list[tuple[Channel, Frames]] = []

    def send(self, channel: Channel, frames: Frames, deliver: Callable[[Frames], None]) -> None:
        """Have `deliver` called with the frames once they are there, in the order of sending."""
        delay = self._draw.randint(0, self._max_delay_ns)
        arrives_at = max(self._events.now + delay, self._free_at.get(channel, 0))
        self._free_at[channel] = arrives_at
        self._num_sent += 1
        number = self._num_sent
        if self._draw.random() < 0.3 and frames[0] != UTILITY:
            self.kept.append((channel, frames))

        def arrive() -> None:
            if number < self._lost_from.get(channel, number + 1):
                deliver(frames)

        self._events.after(arrives_at - self._events.now, f"{channel.direction} {channel.client_index}", arrive)

    def cut(self, generation: int) -> None:
        """An engine is gone: of what it had sent, the last part may be lost."""
        for channel in self._free_at:
            if channel.direction == FROM_ENGINE and channel.generation == generation:
                self._lost_from[channel] = self._num_sent + 1 - self._draw.choice((0, 1, 2, 100))
