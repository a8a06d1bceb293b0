"""Timeline: the last seconds as Chrome trace events, for Perfetto: a track a process, rank, request."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import OutputsTaken, ProcessPhase, WorkerStep
from vllm_obs.telemetry.step_history import StepFacts

MAX_EVENTS = 200_000
"""About 40 MB of JSON; what is older is left out and said so."""
NS_PER_US = 1000

REQUESTS_TRACK = "requests"
START_UP_TRACK = "start-up"

Event = dict[str, Any]


class Track(NamedTuple):
    """A row of the drawing: Chrome's process and thread, by name."""

    process: str
    thread: str


class Slice(NamedTuple):
    """A named time on a track, monotonic ns."""

    track: Track
    name: str
    begun_at: int
    ended_at: int
    facts: dict[str, Any]


class Arrow(NamedTuple):
    """What led to what: from a moment on one track to a moment on another."""

    name: str
    source: Track
    left_at: int
    target: Track
    reached_at: int


Placed = dict[tuple[str, int], tuple[StepFacts, Track]]
"""By engine and number the steps that are drawn, each with its track."""


class TimelineFacts(NamedTuple):
    """What is drawn, as the run's state holds it, and the window (monotonic ns)."""

    begin: int
    end: int
    ledgers: Iterable[SequenceLedger]
    steps: Iterable[StepFacts]
    phases: Iterable[ProcessPhase]


class Drawing(NamedTuple):
    """What is in the window, copied from the run's state: nothing changes it any more. Both in order of time."""

    begin: int
    end: int
    slices: list[Slice]
    arrows: list[Arrow]


def draw(facts: TimelineFacts) -> Drawing:
    """The slices and arrows of the window; a slice that reaches into it is drawn whole."""
    slices: list[Slice] = []
    arrows: list[Arrow] = []
    shown = [step for step in facts.steps if _ends(step) >= facts.begin and _begins(step) <= facts.end]
    lanes = _Lanes()
    placed = {(step.engine, step.step): (step, _step_track(step, lanes)) for step in sorted(shown, key=_begins)}
    for step, track in placed.values():
        slices += _step_slices(step, track)
        for worker in step.workers:
            slices += _worker_slices(worker, _rank_track(worker, step.engine, lanes))
        arrows += _output_arrows(step, track)
    for ledger in facts.ledgers:
        slices += _request_slices(ledger, facts.end)
        arrows += _request_arrows(ledger, placed)
    for phase in facts.phases:
        slices.append(Slice(Track(phase.role, START_UP_TRACK), phase.phase, phase.begun_at, phase.ended_at, {}))
    slices = [entry for entry in slices if _is_in(entry, facts)]
    slices.sort(key=lambda entry: entry.begun_at)
    arrows = [arrow for arrow in arrows if facts.begin <= arrow.left_at <= arrow.reached_at]
    arrows.sort(key=lambda arrow: arrow.left_at)
    return Drawing(facts.begin, facts.end, slices, arrows)


def chrome_trace(drawing: Drawing) -> dict[str, Any]:
    """A Chrome trace JSON object; times in µs from the first event on, events in order of time."""
    slices, arrows = drawing.slices, drawing.arrows
    num_left_out = max(0, len(slices) + 2 * len(arrows) - MAX_EVENTS)
    if num_left_out:
        slices, arrows = slices[-MAX_EVENTS // 2 :], arrows[-MAX_EVENTS // 4 :]
    origin = min((entry.begun_at for entry in slices), default=drawing.begin)
    numbers = _TrackNumbers()
    events = [_slice_event(entry, numbers, origin) for entry in slices]
    for number, arrow in enumerate(arrows):
        if arrow.left_at >= origin:
            events += _arrow_events(arrow, number + 1, numbers, origin)
    events.sort(key=lambda event: event["ts"])
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*numbers.names(), *events],
        "otherData": {
            "origin_monotonic_ns": origin,
            "begin_monotonic_ns": drawing.begin,
            "end_monotonic_ns": drawing.end,
            "num_left_out": num_left_out,
        },
    }


def _is_in(entry: Slice, facts: TimelineFacts) -> bool:
    return entry.begun_at <= entry.ended_at and entry.ended_at >= facts.begin and entry.begun_at <= facts.end


def _begins(step: StepFacts) -> int:
    return step.planned.schedule_begun_at


def _ends(step: StepFacts) -> int:
    return step.answered.updated_at if step.answered else step.planned.schedule_ended_at


class _Lanes:
    """Tracks on which no two steps overlap, so those in flight together have one each."""

    def __init__(self) -> None:
        self._ends: dict[Track, list[int]] = {}

    def of(self, track: Track, begun_at: int, ended_at: int) -> Track:
        """That track, or the first beside it that is free at its beginning; steps must come in that order."""
        ends = self._ends.setdefault(track, [])
        lane = next((lane for lane, end in enumerate(ends) if end <= begun_at), len(ends))
        ends[lane : lane + 1] = [ended_at]
        return track._replace(thread=f"{track.thread} {lane + 1}") if lane else track


def _step_track(step: StepFacts, lanes: _Lanes) -> Track:
    return lanes.of(Track(f"EngineCore_DP{step.engine}", "steps"), _begins(step), _ends(step))


def _rank_track(worker: WorkerStep, engine: str, lanes: _Lanes) -> Track:
    """A rank begins a step before it ends the last one where its device is given work ahead."""
    track = Track(f"EngineCore_DP{engine}", f"rank {worker.rank}")
    return lanes.of(track, worker.received_at, worker.sampled_at or worker.forwarded_at)


def _api_track(outputs: OutputsTaken) -> Track:
    of_engine = f" of engine {outputs.engine_index}" if outputs.engine_index else ""
    return Track(f"APIServer_{outputs.client_index}", f"outputs{of_engine}")


def _request_track(ledger: SequenceLedger) -> Track:
    return Track(REQUESTS_TRACK, ledger.request_id)


def _step_slices(step: StepFacts, track: Track) -> Iterator[Slice]:
    planned, answered = step.planned, step.answered
    counts = {"step": planned.step, "num_requests": len(planned.request_ids)}
    counts["num_tokens"] = sum(planned.num_scheduled_tokens)
    if answered is not None:
        yield Slice(track, f"step {planned.step}", planned.schedule_begun_at, answered.updated_at, counts)
        yield Slice(track, "execute", planned.schedule_ended_at, answered.executed_at, {})
        yield Slice(track, "sample", answered.executed_at, answered.sampled_at, {})
        yield Slice(track, "update", answered.sampled_at, answered.updated_at, {})
    yield Slice(track, "schedule", planned.schedule_begun_at, planned.schedule_ended_at, counts)
    for outputs in step.outputs:
        facts = {"step": outputs.step, "num_sequences": outputs.num_sequences}
        yield Slice(_api_track(outputs), "outputs", outputs.taken_at, outputs.processed_at, facts)


def _worker_slices(worker: WorkerStep, track: Track) -> Iterator[Slice]:
    facts = {"step": worker.step, "num_tokens": worker.num_tokens, "num_rows": worker.num_rows}
    yield Slice(track, "prepare", worker.received_at, worker.prepared_at, facts)
    yield Slice(track, "forward", worker.prepared_at, worker.forwarded_at, facts)
    yield Slice(track, "sample", worker.sample_begun_at, worker.sampled_at, facts)


def _request_slices(ledger: SequenceLedger, now: int) -> Iterator[Slice]:
    track = _request_track(ledger)
    for interval in ledger.intervals_until(now):
        name = f"{interval.stage}: {interval.reason}" if interval.reason else interval.stage
        facts = {"reason": interval.reason} if interval.reason else {}
        yield Slice(track, name, interval.begun_at, interval.ended_at, facts)


def _request_arrows(ledger: SequenceLedger, placed: Placed) -> Iterator[Arrow]:
    """From a request's track into the first step that ran it, and back from the last one."""
    track = _request_track(ledger)
    first = placed.get((ledger.engine, ledger.first_step))
    if first is not None:
        step, core = first
        yield Arrow("scheduled", track, ledger.taken_at, core, step.planned.schedule_ended_at)
    if ledger.ended is None:
        return
    for number in (ledger.last_step, ledger.last_step - 1):  # the last may have been begun ahead, for nothing
        last = placed.get((ledger.engine, number))
        answered = last[0].answered if last is not None else None
        if last is not None and answered is not None and answered.sampled_at <= ledger.ended.ended_at:
            yield Arrow("ended", last[1], answered.sampled_at, track, ledger.ended.ended_at)
            return


def _output_arrows(step: StepFacts, track: Track) -> Iterator[Arrow]:
    for outputs in step.outputs:
        yield Arrow("outputs", track, outputs.sampled_at, _api_track(outputs), outputs.taken_at)


class _TrackNumbers:
    """Chrome's numbers for the tracks, in the order in which they are first used."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[Track, int] = {}

    def of(self, track: Track) -> tuple[int, int]:
        """The numbers of a track's process and thread."""
        process = self._processes.setdefault(track.process, len(self._processes) + 1)
        return process, self._threads.setdefault(track, len(self._threads) + 1)

    def names(self) -> Iterator[Event]:
        """The events that name the tracks."""
        for name, pid in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
        for track, tid in self._threads.items():
            arguments = {"name": track.thread}
            pid = self._processes[track.process]
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": arguments}


def _slice_event(entry: Slice, numbers: _TrackNumbers, origin: int) -> Event:
    pid, tid = numbers.of(entry.track)
    return {
        "ph": "X",
        "name": entry.name,
        "cat": entry.track.process,
        "pid": pid,
        "tid": tid,
        "ts": (entry.begun_at - origin) / NS_PER_US,
        "dur": (entry.ended_at - entry.begun_at) / NS_PER_US,
        "args": entry.facts,
    }


def _arrow_events(arrow: Arrow, number: int, numbers: _TrackNumbers, origin: int) -> list[Event]:
    events: list[Event] = []
    for phase, track, moment in (("s", arrow.source, arrow.left_at), ("f", arrow.target, arrow.reached_at)):
        pid, tid = numbers.of(track)
        event: Event = {"ph": phase, "name": arrow.name, "cat": "flow", "id": number, "pid": pid, "tid": tid}
        event["ts"] = (moment - origin) / NS_PER_US
        if phase == "f":
            event["bp"] = "e"
        events.append(event)
    return events
