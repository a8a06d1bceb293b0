"""Seconds: sums by name for each of the last 300 seconds, added up over windows."""

from collections import Counter
from collections.abc import Iterator, Mapping

from vllm_obs.telemetry.rate_windows import NS, NUM_SECONDS

MAX_SPREAD_SECONDS = NUM_SECONDS


class Seconds:
    """What was counted in each second, in the records' own time; at most NUM_SECONDS of them."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[str, float]] = {}
        self._newest = 0

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, moment: int, sums: Mapping[str, float]) -> None:
        """Count these in the second that the moment (monotonic ns) is in."""
        second = self._second(moment // NS)
        if second is not None:
            before = second.get
            for name, number in sums.items():
                second[name] = before(name, 0) + number

    def spread(self, begun_at: int, ended_at: int, sums: Mapping[str, float]) -> None:
        """Share these out over the seconds from one moment to the other, by how much of it each has."""
        if begun_at // NS == ended_at // NS or ended_at <= begun_at:
            self.add(ended_at, sums)
            return
        for moment, share in _parts(begun_at, ended_at):
            self.add(moment, {name: number * share for name, number in sums.items()})

    def total(self, since: int, until: int) -> Counter[str]:
        """The sums of all seconds that began at `since` (monotonic ns) or later and ended by `until`."""
        total: Counter[str] = Counter()
        for second in range(-(-since // NS), until // NS):
            found = self._sums.get(second)
            if found is not None:
                total.update(found)
        return total

    def _second(self, number: int) -> dict[str, float] | None:
        if number <= self._newest - NUM_SECONDS:
            return None
        found = self._sums.get(number)
        if found is None:
            found = self._sums[number] = {}
            self._newest = max(self._newest, number)
            for old in [second for second in self._sums if second <= self._newest - NUM_SECONDS]:
                del self._sums[old]
        return found


def _parts(begun_at: int, ended_at: int) -> Iterator[tuple[int, float]]:
    """A moment in each second of a span, and that second's share of it; of a very long span the last ones."""
    length = ended_at - begun_at
    first = max(begun_at // NS, ended_at // NS - MAX_SPREAD_SECONDS)
    for second in range(first, ended_at // NS + 1):
        begin, end = max(begun_at, second * NS), min(ended_at, (second + 1) * NS)
        if end > begin:
            yield begin, (end - begin) / length
