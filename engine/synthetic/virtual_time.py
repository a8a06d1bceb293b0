"""Time that only passes when somebody says so: one clock for a whole run, and one for each rank within a step."""

from collections.abc import Callable, Sequence

LOOK_NS = 1000
"""What a look at a clock takes, so that nothing takes no time at all."""
BEGUN_AT = 1_000_000_000_000
WALL_OFFSET_NS = 1_700_000_000_000_000_000
"""What turns a moment of a simulated run into wall time."""

Interval = tuple[int, int]


class VirtualClock:
    """Monotonic ns of a simulated run. `before_move(to)` and `on_round(at)` are told while time moves on.

    Rounds are so many ns apart; a look at the clock is too short for one.
    """

    def __init__(self, round_ns: int, now: int = BEGUN_AT) -> None:
        self.now = now
        self.before_move: Callable[[int], None] = lambda to: None
        self.on_round: Callable[[int], None] = lambda at: None
        self._round_ns = round_ns
        self._next_round_at = now + round_ns

    def read(self) -> int:
        """The moment it is, which is over then."""
        self.now += LOOK_NS
        return self.now

    def move_to(self, moment: int) -> None:
        """Let time go by until that moment; nothing if it is past."""
        self.before_move(moment)
        while self._next_round_at <= moment:
            self.now = max(self.now, self._next_round_at)
            self._next_round_at += self._round_ns
            self.on_round(self.now)
        self.now = max(self.now, moment)


class RankClock:
    """One rank's clock within steps. In its `stopped` intervals (ns, in order) nothing of its work gets done."""

    def __init__(self, stopped: Sequence[Interval] = (), stretch: Callable[[], float] = lambda: 1.0) -> None:
        self.now = 0
        self._stopped = stopped
        self._stretch = stretch

    def start(self, moment: int) -> None:
        """A call came at that moment; if the rank stands still then, it takes the call when it goes on."""
        self.now = self._after(moment, 0)

    def read(self) -> int:
        """The moment it is for this rank."""
        self.now += LOOK_NS
        return self.now

    def sleep(self, seconds: float) -> None:
        """Work for so long, or a little longer: no two steps take exactly the same time."""
        self.now = self._after(self.now, int(seconds * self._stretch() * 1e9))

    def is_stopped(self, moment: int) -> bool:
        """Whether the rank stands still at that moment."""
        return any(begin <= moment < end for begin, end in self._stopped)

    def _after(self, begin: int, num_ns: int) -> int:
        end = begin + num_ns
        for stopped_at, resumed_at in self._stopped:
            if begin < resumed_at and end >= stopped_at:
                end += resumed_at - max(begin, stopped_at)
        return end
