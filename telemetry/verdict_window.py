"""WindowFacts: what one engine did in a window, as the figures that findings rest on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm_obs.telemetry.ddsketch import DDSketch
from vllm_obs.telemetry.records import EngineDescribed, StallBegun
from vllm_obs.telemetry.verdict_tally import LAG, LIMIT, LOOP_LAG, LOOP_SAMPLES, StalledStep, during

NS = 1e9


@dataclass(frozen=True)
class WindowFacts:
    """`sums` are those of `verdict_tally` over `seconds` of time, `ratios` observed over floor.

    `stalls` are steps of the window that took far too long. `standing` is what stands still now and `noticed` what
    did in the window, as the watchdog told it. `open_seconds` is how long the step in progress has gone beyond
    what it needs at best, or the engine has stood still; `num_waiting` and `num_running` are as of now.
    """

    engine: str
    described: EngineDescribed | None
    seconds: float
    sums: Counter[str]
    ratios: DDSketch = field(default_factory=DDSketch)
    stalls: tuple[StalledStep, ...] = ()
    standing: tuple[StallBegun, ...] = ()
    noticed: tuple[StallBegun, ...] = ()
    open_seconds: float = 0.0
    num_waiting: int = 0
    num_running: int = 0

    def share(self, name: str) -> float:
        """A sum of time as a share of the window, 0 to 1."""
        return min(1.0, self.sums[name] / (self.seconds * NS)) if self.seconds > 0 else 0.0

    def share_of_work(self, name: str) -> float:
        """A sum of time as a share of the window less what stalls took: those have a finding of their own."""
        able_ns = self.seconds * NS - self.sums["stalled_ns"]
        return min(1.0, self.sums[name] / able_ns) if able_ns > 0 else 0.0

    def limit_share(self, limit: str) -> float:
        """The share of that time in which this limit was binding."""
        return self.share_of_work(f"{LIMIT}{limit}")

    def limit_seconds(self) -> dict[str, float]:
        """Seconds of step time by binding limit, the longest first."""
        found = {
            name.removeprefix(LIMIT): number / NS for name, number in self.sums.items() if name.startswith(LIMIT)
        }
        return {limit: round(found[limit], 4) for limit in sorted(found, key=lambda each: -found[each])}

    def ratio(self, name: str, of: str) -> float:
        """One sum over another, 0 where there is nothing to divide by."""
        return self.sums[name] / self.sums[of] if self.sums[of] else 0.0

    def mean_during(self, condition: str, figure: str) -> float:
        """The mean of a figure (`waiting`, `running`, `active`) over the time in which a condition held."""
        return self.ratio(during(f"{figure}_ns", condition), condition)

    def mean_ms(self, name: str, count: str) -> float:
        """A sum of time by a count, in milliseconds."""
        return self.ratio(name, count) / 1e6

    def latest_loop(self) -> tuple[float, float]:
        """Of the API server whose loop was latest the mean lag of a second, and all of it (seconds)."""
        lags = {name.removeprefix(LOOP_LAG): lag for name, lag in self.sums.items() if name.startswith(LOOP_LAG)}
        found = [(self.ratio(LOOP_LAG + client, LOOP_SAMPLES + client), lag) for client, lag in lags.items()]
        return max(found, default=(0.0, 0.0))

    def rank_lags(self) -> dict[int, float]:
        """By rank, the share of the ranks' time in which the others waited for it."""
        total = self.sums["ranks_ns"]
        lags = {name: number for name, number in self.sums.items() if name.startswith(LAG)}
        return {int(name.removeprefix(LAG)): number / total for name, number in lags.items() if total}


class Finding(NamedTuple):
    """Something that held requests back. `share` is the part of the window (0 to 1) in which it did.

    `evidence` are the figures it rests on, with their units in their names; `helps` and `helps_not` are sentences.
    `is_severe` says that it is bad however short it was, `is_past` that it held in the window and no longer does.
    """

    name: str
    share: float
    says: str
    evidence: Mapping[str, float | str]
    helps: tuple[str, ...]
    helps_not: tuple[str, ...]
    engines: tuple[str, ...] = ()
    is_severe: bool = False
    is_past: bool = False

    def document(self) -> dict[str, Any]:
        """In plain values, figures to four digits."""
        figures = {
            name: round(value, 4) if isinstance(value, float) else value for name, value in self.evidence.items()
        }
        return {
            "name": self.name,
            "share": round(self.share, 4),
            "says": self.says,
            "engines": list(self.engines),
            "evidence": figures,
            "helps": list(self.helps),
            "helps_not": list(self.helps_not),
        }
