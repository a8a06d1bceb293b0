"""RateWindows: what happened in each of the last 300 seconds, summed over windows of 10 s, 1 min and 5 min."""

from collections import Counter

from vllm_obs.telemetry.catalogue_own import ERROR_TYPES
from vllm_obs.telemetry.catalogue_row import OTHER
from vllm_obs.telemetry.http_metrics import is_counted
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import HttpRequestEnded, Record, RequestSubmitted, StepAnswered, StepPlanned
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source

WINDOWS = {"10s": 10, "1m": 60, "5m": 300}
"""Name → seconds."""
NUM_SECONDS = 301
"""The longest window and the second that is not over yet."""
NS = 1_000_000_000

MAX_ADMITTED = 65_536
ERROR_STATUS, BUSY, CLIENT_GONE, SERVER_STATUS = 400, 429, 499, 500
REFUSED = "refused/"
"""What the counts of refused requests are called before their reason."""

STEP_PHASES = ("schedule", "execute", "sample", "update")


class RateWindows(BaseView):
    """A view of the run that counts by the second, in the records' own time.

    `steps`, `prompt_tokens` (computed), `output_tokens`, `requests`, `failed_requests` and
    `http_requests` are numbers; the step phases are ns by engine. `requests` are sequences. Failed are those that
    ended with an error, and HTTP requests that the server refused (429, 5xx) before they had any.
    """

    record_kinds = (RequestSubmitted, HttpRequestEnded)

    def __init__(self) -> None:
        self._seconds: dict[int, Counter[str]] = {}
        self._newest = 0
        self._first = 0
        self._admitted: dict[str, None] = {}
        """HTTP requests that are not over and have sequences, oldest first."""

    def record(self, source: Source, record: Record) -> None:
        """Count an HTTP request that is no probe, and what it was refused for."""
        if isinstance(record, RequestSubmitted):
            self._admit(record.http_id)
        elif isinstance(record, HttpRequestEnded):
            is_admitted = record.http_id in self._admitted
            self._admitted.pop(record.http_id, None)
            if is_counted(record.handler):
                self._add(record.ended_at, "http_requests", 1)
                if not is_admitted and record.status >= ERROR_STATUS and record.status != CLIENT_GONE:
                    self._refused(record)

    def resumed(self, source: Source, ledger: SequenceLedger) -> None:
        """A sequence lives that was submitted before an Observer was started again."""
        if ledger.http is None:
            self._admit(ledger.submitted.http_id)

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """Count the prompt that a first token was computed for; tokens themselves are counted by the step."""
        num_computed = ledger.submitted.num_prompt_tokens - ledger.num_cached_tokens
        self._add(sampled_at, "prompt_tokens", max(0, num_computed))

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """Count an ending."""
        if ledger.ended is not None:
            self._add(ledger.ended.ended_at, "requests", 1)
            if ledger.ended.finish_reason == "error":
                self._add(ledger.ended.ended_at, "failed_requests", 1)

    def step_closed(self, step: StepFacts) -> None:
        """Count a step and where its time went."""
        planned, answered = step.planned, step.answered
        if answered is None:
            return
        second = self._second(answered.updated_at)
        if second is None:
            return
        second["steps"] += 1
        second["output_tokens"] += sum(answered.num_new_tokens)
        for phase, length_ns in _loop_ns(step, planned, answered).items():
            second[f"{step.engine}/{phase}"] += max(0, length_ns)

    def rates(self, now: int) -> dict[str, dict[str, float]]:
        """Numbers a second by window and name, over the whole seconds before `now` (monotonic ns)."""
        names = ("steps", "prompt_tokens", "output_tokens", "requests", "failed_requests", "http_requests")
        return {
            window: {f"{name}_per_second": totals[name] / seconds for name in names}
            for window, seconds, totals in self._totals(now)
        }

    @property
    def newest_second(self) -> int:
        """The number of the last second that anything was counted in."""
        return self._newest

    def total(self, seconds: range) -> Counter[str] | None:
        """What was counted in these seconds, by number; None if they ended before anything was counted."""
        if not self._first or seconds.stop <= self._first:
            return None
        total: Counter[str] = Counter()
        for second in seconds:
            if second in self._seconds:
                total.update(self._seconds[second])
        return total

    def refused(self, now: int) -> dict[str, dict[str, int]]:
        """By window and reason, HTTP requests answered with an error that no sequence had been made for."""
        return {
            window: {
                name.removeprefix(REFUSED): number
                for name, number in totals.most_common()
                if name.startswith(REFUSED)
            }
            for window, _, totals in self._totals(now)
        }

    def loop_shares(self, now: int, engine: str) -> dict[str, dict[str, float]]:
        """By window, the share of time (0 to 1) one engine's loop was in each phase, `busy` and `idle`."""
        shares: dict[str, dict[str, float]] = {}
        for window, seconds, totals in self._totals(now):
            share = {phase: totals[f"{engine}/{phase}"] / (seconds * NS) for phase in STEP_PHASES}
            # Steps that overlap (several in flight) make more than the time there is: they share it.
            overlap = max(1.0, sum(share.values()))
            share = {phase: part / overlap for phase, part in share.items()}
            busy = min(1.0, sum(share.values()))
            shares[window] = share | {"busy": busy, "idle": 1.0 - busy}
        return shares

    def _totals(self, now: int) -> list[tuple[str, int, Counter[str]]]:
        current = now // NS
        # A run that is younger than a window is not made to look slower than it was.
        age = max(1, current - self._first)
        totals: list[tuple[str, int, Counter[str]]] = []
        for window, seconds in WINDOWS.items():
            total: Counter[str] = Counter()
            for second in range(current - seconds, current):
                if second in self._seconds:
                    total.update(self._seconds[second])
            totals.append((window, min(seconds, age), total))
        return totals

    def _admit(self, http_id: str) -> None:
        if not http_id:
            return
        self._admitted[http_id] = None
        if len(self._admitted) > MAX_ADMITTED:
            del self._admitted[next(iter(self._admitted))]

    def _refused(self, record: HttpRequestEnded) -> None:
        reason = record.reason if record.reason in ERROR_TYPES else OTHER
        self._add(record.ended_at, f"{REFUSED}{reason}", 1)
        if record.status >= SERVER_STATUS or record.status == BUSY:
            self._add(record.ended_at, "failed_requests", 1)

    def _add(self, moment: int, name: str, number: int) -> None:
        second = self._second(moment)
        if second is not None:
            second[name] += number

    def _second(self, moment: int) -> Counter[str] | None:
        """The second a moment is in; None for one that is already past all windows."""
        number = moment // NS
        if number <= self._newest - NUM_SECONDS:
            return None
        found = self._seconds.get(number)
        if found is None:
            found = self._seconds[number] = Counter()
            self._newest = max(self._newest, number)
            self._first = self._first or number
            for old in [second for second in self._seconds if second <= self._newest - NUM_SECONDS]:
                del self._seconds[old]
        return found


def end_of_second(moment: int) -> int:
    """When the second that this moment is in is over: from there a time that stands still is looked at."""
    return -(-(moment + 1) // NS) * NS


def _loop_ns(step: StepFacts, planned: StepPlanned, answered: StepAnswered) -> dict[str, int]:
    """Where the engine's loop was. An executor that samples inside of execute is told by its slowest rank."""
    worker = max(step.workers, key=lambda record: record.sampled_at, default=None)
    sample_ns = answered.sampled_at - answered.executed_at
    if worker is not None:
        sample_ns = worker.sampled_at - worker.sample_begun_at
    return {
        "schedule": planned.schedule_ended_at - planned.schedule_begun_at,
        "execute": answered.sampled_at - planned.schedule_ended_at - sample_ns,
        "sample": sample_ns,
        "update": answered.updated_at - answered.sampled_at,
    }
