"""Slo: a view that counts which sequences kept to the objectives, over all time and over windows."""

from collections import Counter, deque
from heapq import nlargest
from typing import Any

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.slo_judgement import ERROR, Judgement, Miss, judge
from vllm_obs.telemetry.slo_targets import OBJECTIVES, SloTargets
from vllm_obs.telemetry.view import BaseView

WINDOWS = {"1m": 60, "5m": 300}
"""Name → seconds."""
NUM_SECONDS = 301
MAX_MISSES = 1000
NUM_WORST = 10
GOODPUT_WINDOW = "1m"
MISSES = (*OBJECTIVES, ERROR)
NS = 1_000_000_000
STATE_VERSION = 1


class Slo(BaseView):
    """Goodput is requests a second that met all objectives, as in `vllm-obs bench serve --goodput`.

    Without targets nothing is counted. A sequence counts once, when it closes, in the second in which it ended;
    one that misses several objectives is shown under the one it missed by most.
    """

    def __init__(self, targets: SloTargets | None = None) -> None:
        self.targets = targets or SloTargets()
        self.num_attained = 0
        self.num_missed: Counter[str] = Counter()
        """Sequences by the objective that they missed by most."""
        self._seconds: dict[int, Counter[str]] = {}
        self._misses: deque[Miss] = deque(maxlen=MAX_MISSES)
        self._newest = 0
        self._first = 0

    @property
    def is_set(self) -> bool:
        """Whether anything is promised."""
        return bool(self.targets.given())

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """Judge a sequence."""
        if not self.is_set:
            return
        judgement = judge(ledger, self.targets)
        if judgement is not None:
            self._count(judgement, ledger.ended_at)

    def view(self, now: int) -> dict[str, Any]:
        """All of `/inspect/slo`."""
        return {
            "targets": self.targets.given(),
            "num_attained": self.num_attained,
            "num_missed": dict(self.num_missed),
            "windows": {name: self._window(now, seconds) for name, seconds in WINDOWS.items()},
        }

    def summary(self, now: int) -> dict[str, Any] | None:
        """The last minute in a few numbers; None without targets."""
        if not self.is_set:
            return None
        window = self._window(now, WINDOWS[GOODPUT_WINDOW])
        names = ("attainment", "goodput_requests_per_second", "num_attained", "num_missed")
        return {
            "targets": self.targets.given(),
            "window": GOODPUT_WINDOW,
            **{name: window[name] for name in names},
        }

    def show(self, store: MetricStore, now: int) -> None:
        """Set the metrics. A window in which nothing ended has no attainment."""
        if not self.is_set:
            return
        store.value("vllm_obs_slo_attained_total").raise_to(self.num_attained)
        for name in (*self.targets.given(), ERROR):
            store.value("vllm_obs_slo_missed_total", name).raise_to(self.num_missed[name])
        for name, limit in self.targets.given().items():
            store.value("vllm_obs_slo_target_seconds", name).set(limit)
        ratios = store.families["vllm_obs_slo_attainment_ratio"]
        ratios.series.clear()
        for name, seconds in WINDOWS.items():
            window = self._window(now, seconds)
            store.value("vllm_obs_goodput_requests_per_second", name).set(window["goodput_requests_per_second"])
            if window["attainment"] is not None:
                ratios.value(name).set(window["attainment"])

    def state(self) -> Any:
        """For a checkpoint."""
        seconds = [[second, dict(counts)] for second, counts in self._seconds.items()]
        misses = [list(miss) for miss in self._misses]
        counts = [self.num_attained, dict(self.num_missed), self._newest, self._first]
        return [STATE_VERSION, counts, seconds, misses]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none of this version's."""
        version, counts, seconds, misses = state
        if version != STATE_VERSION:
            raise ValueError(f"objectives of version {version}; this version reads {STATE_VERSION}")
        self.num_attained, num_missed, self._newest, self._first = counts
        self.num_missed = Counter(num_missed)
        self._seconds = {second: Counter(counts) for second, counts in seconds}
        self._misses.extend(Miss(*miss) for miss in misses)

    def _count(self, judgement: Judgement, ended_at: int) -> None:
        second = self._second(ended_at)
        if judgement.worst is None:
            self.num_attained += 1
            second["attained"] += 1
            return
        self.num_missed[judgement.worst.objective] += 1
        second["missed"] += 1
        second.update(judgement.missed)
        self._misses.append(judgement.worst)

    def _window(self, now: int, seconds: int) -> dict[str, Any]:
        """The whole seconds before `now`; of a run that is younger, all of them."""
        current = now // NS
        begin = max(current - seconds, 0)
        totals: Counter[str] = Counter()
        for second in range(begin, current):
            totals.update(self._seconds.get(second, ()))
        num_ended = totals["attained"] + totals["missed"]
        length = min(seconds, max(1, current - self._first)) if self._first else seconds
        return {
            "seconds": length,
            "num_attained": totals["attained"],
            "num_missed": totals["missed"],
            "attainment": totals["attained"] / num_ended if num_ended else None,
            "goodput_requests_per_second": totals["attained"] / length,
            "missed_by_objective": {name: totals[name] for name in MISSES if totals[name]},
            "worst": [_shown(miss) for miss in self._worst(begin * NS, current * NS)],
        }

    def _worst(self, begun_at: int, ended_at: int) -> list[Miss]:
        found = (miss for miss in self._misses if begun_at <= miss.ended_at < ended_at)
        return nlargest(NUM_WORST, found, key=lambda miss: (miss.ratio, miss.ended_at))

    def _second(self, moment: int) -> Counter[str]:
        """The second a moment is in; one that is past all windows is not kept."""
        number = moment // NS
        if number <= self._newest - NUM_SECONDS:
            return Counter()
        if number not in self._seconds:
            self._seconds[number] = Counter()
            self._newest = max(self._newest, number)
            self._first = min(self._first, number) if self._first else number
            for old in [second for second in self._seconds if second <= self._newest - NUM_SECONDS]:
                del self._seconds[old]
        return self._seconds[number]


def _shown(miss: Miss) -> dict[str, Any]:
    return miss._asdict() | {"times_limit": miss.ratio if miss.limit else None}
