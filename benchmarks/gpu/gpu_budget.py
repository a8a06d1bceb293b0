"""Budget: how long each part of a measurement may take, so that the whole ends in its time, and what was cut."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Say = Callable[[str], object]


@dataclass
class Budget:
    """`seconds` for parts with these shares, in this order; what a part does not use is the next one's.

    `cuts` says what was left out for want of time, `failures` what went wrong, in words.
    """

    seconds: float
    shares: dict[str, float]
    clock: Callable[[], float] = time.monotonic
    say: Say = print
    cuts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    begun_at: float = 0.0

    def __post_init__(self) -> None:
        self.begun_at = self.clock()

    def part(self, name: str) -> "Part":
        """A part that begins now, and must be over when its share and those before it are used up."""
        names = list(self.shares)
        upto = sum(self.shares[each] for each in names[: names.index(name) + 1])
        whole = sum(self.shares.values())
        return Part(self, name, self.begun_at + self.seconds * upto / whole)

    @property
    def used_seconds(self) -> float:
        """So far."""
        return self.clock() - self.begun_at


@dataclass(frozen=True)
class Part:
    """One part, and when it must be over."""

    budget: Budget
    name: str
    deadline: float

    @property
    def left_seconds(self) -> float:
        """Until the deadline, never less than none."""
        return max(0.0, self.deadline - self.budget.clock())

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether something that takes so long would end in time."""
        return self.left_seconds > seconds

    def cut(self, what: str) -> None:
        """Say that something was left out for want of time."""
        self._note(self.budget.cuts, "CUT SHORT", what)

    def fail(self, what: str) -> None:
        """Say that something went wrong; the other parts go on."""
        self._note(self.budget.failures, "FAILED", what)

    def _note(self, notes: list[str], word: str, what: str) -> None:
        words = f"{self.name}: {what}"
        if words not in notes:
            notes.append(words)
            self.budget.say(f"{word} {words}")
