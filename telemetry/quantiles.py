"""Quantiles: what is typical and what is slow, over sliding windows and over the whole run, per engine or all."""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm_obs.telemetry.ddsketch import DDSketch

MEASURES = ("ttft", "itl", "e2e", "queue", "prefill", "decode", "time_per_output_token", "step")
"""What is measured, all in seconds."""

WINDOWS: dict[str, float | None] = {"10s": 10.0, "1m": 60.0, "5m": 300.0, "run": None}
"""Lengths of the windows in seconds; `run` is everything."""

SLICE_NS = 10**9
"""Windows move on by this much, so that one of 10 s covers the last 9 to 10 seconds."""

MAX_SLICES = 300
MAX_ENGINES = 256


class Summary(NamedTuple):
    """One measure over one window, in seconds; quantiles to within one per cent, `max` exact."""

    num_observed: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, sketch: DDSketch) -> "Summary":
        """What a sketch says."""
        num_observed = sketch.num_observed
        mean = sketch.total / num_observed if num_observed else 0.0
        p50, p90, p95, p99 = map(sketch.quantile, (0.5, 0.9, 0.95, 0.99))
        return cls(num_observed, mean, p50, p90, p95, p99, sketch.greatest)


class Track:
    """One measure of one engine: a sketch for each of the last seconds that saw anything, one for all before."""

    def __init__(self) -> None:
        self._past = DDSketch()
        self._slices: deque[tuple[int, DDSketch]] = deque()
        self._newest = DDSketch()
        self._newest_ends_at = 0

    def observe(self, seconds: float, moment: int, number: int = 1) -> None:
        """Count so many of a value at their moment (monotonic ns); what comes late is counted with the newest."""
        if moment >= self._newest_ends_at:
            self._begin(moment // SLICE_NS)
        self._newest.observe(seconds, number)

    def run(self) -> DDSketch:
        """All that was ever counted."""
        whole = DDSketch()
        whole.merge(self._past)
        whole.merge(self._newest)
        return whole

    def go_on_from(self, run: DDSketch) -> None:
        """This was counted before."""
        self._past = run

    def since(self, moment: int) -> Iterable[DDSketch]:
        """The sketches of all slices that began after the moment."""
        return (sketch for number, sketch in self._slices if number * SLICE_NS > moment)

    def between(self, first: int, end: int) -> Iterable[DDSketch]:
        """The sketches of the seconds from number `first` up to `end`, without it."""
        return (sketch for number, sketch in self._slices if first <= number < end)

    def _begin(self, number: int) -> None:
        self._past.merge(self._newest)
        self._newest, self._newest_ends_at = DDSketch(), (number + 1) * SLICE_NS
        self._slices.append((number, self._newest))
        while self._slices[0][0] <= number - MAX_SLICES:
            self._slices.popleft()


class Quantiles:
    """Every measure of every engine."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[str, Track]] = {}

    def observe(self, measure: str, engine: str, seconds: float, moment: int) -> None:
        """Count a value. KeyError for a measure that is not in `MEASURES`."""
        self.track(measure, engine).observe(seconds, moment)

    def track(self, measure: str, engine: str) -> Track:
        """Where a measure of an engine is counted. KeyError for one that is not in `MEASURES`."""
        tracks = self._tracks.get(engine)
        return (tracks if tracks is not None else self._make(engine))[measure]

    def summary(self, window: str, now: int, engine: str | None = None) -> dict[str, Summary]:
        """All measures over a window that ends now (monotonic ns), of one engine or over all of them.

        Raises KeyError for a window that is not in `WINDOWS`.
        """
        seconds = WINDOWS[window]
        since = None if seconds is None else now - int(seconds * 1e9)
        return {measure: Summary.of(self._merged(measure, since, engine)) for measure in MEASURES}

    def summary_with(
        self, measure: str, seconds: Iterable[float], window: str, now: int, engine: str | None = None
    ) -> Summary:
        """One measure as `summary` tells it, with these values of what is not over yet."""
        length = WINDOWS[window]
        merged = self._merged(measure, None if length is None else now - int(length * 1e9), engine)
        for value in seconds:
            merged.observe(value)
        return Summary.of(merged)

    def between(self, measure: str, first: int, end: int) -> DDSketch:
        """A measure over all engines in the seconds from number `first` up to `end`, without it."""
        merged = DDSketch()
        for tracks in self._tracks.values():
            for sketch in tracks[measure].between(first, end):
                merged.merge(sketch)
        return merged

    def state(self) -> Any:
        """The whole run's sketches in plain values; windows begin anew."""
        return [
            [engine, measure, track.run().state()]
            for engine, tracks in self._tracks.items()
            for measure, track in tracks.items()
        ]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        for engine, measure, run in state:
            if measure in MEASURES:
                self._make(engine)[measure].go_on_from(DDSketch.of(run))

    def _merged(self, measure: str, since: int | None, engine: str | None) -> DDSketch:
        merged = DDSketch()
        for name, tracks in self._tracks.items():
            if engine is None or engine == name:
                track = tracks[measure]
                for sketch in [track.run()] if since is None else track.since(since):
                    merged.merge(sketch)
        return merged

    def _make(self, engine: str) -> dict[str, Track]:
        if engine not in self._tracks and len(self._tracks) >= MAX_ENGINES:
            engine = next(iter(self._tracks))
        return self._tracks.setdefault(engine, {measure: Track() for measure in MEASURES})
