"""A GPU's memory as a test says it is."""

from dataclasses import dataclass, field


@dataclass
class FakeMemory:
    """What is free, and what of the rest is torch's; `settled` has what was free each time all was given back."""

    total: int = 1000
    free: int = 600
    num_reserved: int = 300
    num_allocated: int = 200
    highest: int = 250
    settled: list[int] = field(default_factory=list)

    def free_and_total(self) -> tuple[int, int]:
        return self.free, self.total

    def allocated(self) -> int:
        return self.num_allocated

    def reserved(self) -> int:
        return self.num_reserved

    def peak(self) -> int:
        return self.highest

    def watch_peak(self) -> None:
        pass

    def settle(self) -> None:
        self.settled.append(self.free)
