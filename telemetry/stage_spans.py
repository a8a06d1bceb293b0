"""StageSpans: a span for every interval of a sequence's ledger, with links to the steps that ran in it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.span import Process, Span, Value
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_segments import Segment
from vllm_obs.telemetry.trace_ids import span_id

CORE_STAGES = frozenset({"queue", "prefill", "decode", "preempted", "recompute", "stalled"})
"""Stages that the engine owns; the others are the API server's."""

STEP_STAGES = frozenset({"prefill", "decode", "recompute"})


class _Piece(NamedTuple):
    """A part of an interval in which one segment's steps ran, or all of it."""

    begun_at: int
    ended_at: int
    segment: Segment | None


class StageSpans:
    """Makes the spans below one sequence. Decoding is cut where its segments end, at most 128 steps apart."""

    def __init__(self, run: str, engines: Mapping[str, Process]) -> None:
        self._run = run
        self._engines = engines

    def of(self, above: Span, ledger: SequenceLedger, segments: list[Segment]) -> Iterator[Span]:
        """The stages of `ledger` in order, children of `above`."""
        core = self._engines.get(ledger.engine, above.process)
        by_interval = _segments_of(ledger.intervals, segments)
        number = 0
        for index, interval in enumerate(ledger.intervals):
            process = core if interval.stage in CORE_STAGES else above.process
            for piece in _pieces(interval, by_interval.get(index, ())):
                number += 1
                yield Span(
                    trace_id=above.trace_id,
                    span_id=self._id(ledger.request_id, number, piece.segment),
                    parent_id=above.span_id,
                    name=interval.stage,
                    begun_at=piece.begun_at,
                    ended_at=piece.ended_at,
                    process=process,
                    attributes=_attributes(interval, piece.segment),
                    links=piece.segment.links if piece.segment is not None else (),
                )

    def _id(self, request_id: str, number: int, segment: Segment | None) -> int:
        return segment.span_id if segment is not None else span_id(self._run, "stage", f"{request_id}.{number}")


def _segments_of(intervals: list[Interval], segments: list[Segment]) -> dict[int, list[Segment]]:
    """Each segment with the interval in which its first step was sampled; both are in the order of time.

    Steps that ran on after the sequence's ending go to the last interval, so that links to them lead somewhere.
    """
    places = [index for index, interval in enumerate(intervals) if interval.stage in STEP_STAGES]
    # A sequence that ended while its first step ran has none.
    places = places or list(range(len(intervals)))[-1:]
    found: dict[int, list[Segment]] = {}
    reached = 0
    for segment in segments if places else ():
        while reached < len(places) - 1 and intervals[places[reached]].ended_at < segment.first_at:
            reached += 1
        found.setdefault(places[reached], []).append(segment)
    return found


def _pieces(interval: Interval, segments: Sequence[Segment]) -> Iterator[_Piece]:
    """The interval cut at the last moment of each segment but the last."""
    if not segments:
        yield _Piece(interval.begun_at, interval.ended_at, None)
        return
    begun_at = interval.begun_at
    for segment in segments[:-1]:
        ended_at = min(max(segment.last_at, begun_at), interval.ended_at)
        yield _Piece(begun_at, ended_at, segment)
        begun_at = ended_at
    yield _Piece(begun_at, interval.ended_at, segments[-1])


def _attributes(interval: Interval, segment: Segment | None) -> dict[str, Value]:
    attributes: dict[str, Value] = {span_names.STAGE: interval.stage}
    if interval.reason:
        attributes[span_names.STAGE_REASON] = interval.reason
    if segment is not None:
        attributes |= {
            span_names.FIRST_STEP: segment.first_step,
            span_names.LAST_STEP: segment.last_step,
            span_names.NUM_STEPS: segment.num_steps,
        }
    return attributes
