"""TracedRows: which steps ran which sampled sequences, kept as links that both sides' spans can name at once.

A sequence's steps are cut into segments of at most 128 steps that touch and were in one stage. A segment's span id
is derived from its first step, so a step links to a span that will only be made when the sequence has ended.
"""

from collections import OrderedDict

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.otlp_encoding import encode_attributes, encode_context, encode_link
from vllm_obs.telemetry.quantiles import MAX_ENGINES
from vllm_obs.telemetry.records import EngineDescribed, RequestSubmitted, StepAnswered, StepFailed, StepPlanned
from vllm_obs.telemetry.span import MAX_LINKS, recorded_parent
from vllm_obs.telemetry.step_segments import LINK_ATTRIBUTES, Company, Segment
from vllm_obs.telemetry.trace_ids import span_id
from vllm_obs.telemetry.view import Source

MAX_SEQUENCES = 65_536
MAX_PLANS = 64
MAX_STEPS = 1024
MAX_HELD_LINKS = 1 << 18
"""Links from live sequences to their steps; beyond it sequences go on without (some 30 MB)."""


class TracedSequence:
    """A sampled sequence that lives; `stage` is what its next step does for it."""

    __slots__ = ("last", "request_id", "segments", "stage", "trace_id")

    def __init__(self, request_id: str, trace_id: int) -> None:
        self.request_id = request_id
        self.trace_id = trace_id
        self.stage = "prefill"
        self.segments: list[Segment] = []
        self.last: Segment | None = None


class StepLinks:
    """A step that sampled sequences ran in: its ids, and its links to their segments."""

    __slots__ = ("links", "span_id", "trace_id")

    def __init__(self, trace_id: int, step_id: int) -> None:
        self.trace_id = trace_id
        self.span_id = step_id
        self.links: list[bytes] = []


class TracedRows:
    """Follows the steps of sampled sequences, of all engines.

    `num_links_left_out` counts the links that were not kept because there were too many.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._sequences: OrderedDict[str, TracedSequence] = OrderedDict()
        self._plans: OrderedDict[tuple[str, int], StepPlanned] = OrderedDict()
        self._steps: OrderedDict[tuple[str, int], StepLinks] = OrderedDict()
        self._decoding: list[str] = []
        """Sequences (the very list of an answer) that are known to decode."""
        self._companies: dict[str, Company] = {}
        """Rows that may run on together, by engine."""
        self._num_held = 0
        self._strides: dict[str, int] = {}
        self.num_links_left_out = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def described(self, source: Source, described: EngineDescribed) -> None:
        """How many steps an engine may have in flight: a sequence is in one of them."""
        if len(self._strides) < MAX_ENGINES or source.engine in self._strides:
            self._strides[source.engine] = max(1, described.num_stages)

    def begin(self, submitted: RequestSubmitted) -> None:
        """Follow the sequence from now on, if it is sampled."""
        parent = recorded_parent(submitted.trace_parent)
        if parent is not None and parent.is_sampled:
            self._settle()
            if len(self._sequences) >= MAX_SEQUENCES:
                self._release(self._sequences.popitem(last=False)[1])
            self._sequences[submitted.request_id] = TracedSequence(submitted.request_id, parent.trace_id)
            self._decoding = []

    def end(self, request_id: str) -> list[Segment]:
        """The sequence's segments in order; it is forgotten."""
        self._settle()
        sequence = self._sequences.pop(request_id, None)
        return self._release(sequence) if sequence is not None else []

    def planned(self, source: Source, planned: StepPlanned) -> None:
        """Keep a plan until its step has answered, if it runs a sampled sequence."""
        sequences = self._sequences
        if not sequences or not any(map(sequences.__contains__, planned.request_ids)):
            return
        self._plans[source.engine, planned.step] = planned
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)

    def answered(self, source: Source, answered: StepAnswered) -> None:
        """The step ran: link it with the segments of its sampled sequences."""
        planned = self._plans.pop((source.engine, answered.step), None)
        if planned is None:
            return
        self._link(source, planned, answered.sampled_at)
        if answered.request_ids is not self._decoding:
            self._decoding = answered.request_ids
            for request_id in answered.request_ids:
                sequence = self._sequences.get(request_id)
                if sequence is not None:
                    sequence.stage = "decode"

    def failed(self, source: Source, failed: StepFailed) -> None:
        """The step broke off: its links say whom it took with it."""
        planned = self._plans.pop((source.engine, failed.step), None)
        if planned is not None:
            self._link(source, planned, failed.failed_at)

    def step_links(self, engine: str, step: int) -> StepLinks | None:
        """The ids and links of a step that ran sampled sequences, once; None for any other."""
        return self._steps.pop((engine, step), None)

    def _link(self, source: Source, planned: StepPlanned, sampled_at: int) -> None:
        if planned.resumed_ids:
            self._decoding = []
            self._settle()
        for request_id in planned.resumed_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                sequence.stage = "recompute"
        step, sequences, stride = planned.step, self._sequences, self._strides.get(source.engine, 1)
        links, own_link = self._step_ids(source, step)
        is_room = self._num_held + len(planned.request_ids) <= MAX_HELD_LINKS
        company = self._companies.pop(source.engine, None)
        if company is not None:
            if is_room and company.goes_on(planned, stride):
                self._companies[source.engine] = company
                links.links = company.add(planned, sampled_at, own_link)
                self._num_held += len(links.links)
                return
            company.settle()
        add_link = links.links.append
        segments: list[Segment] = []
        places: list[int] = []
        # The loop that tracing costs most by: once for each row of each step.
        for place, (request_id, num_tokens, num_blocks) in enumerate(
            zip(planned.request_ids, planned.num_scheduled_tokens, planned.num_new_blocks, strict=True)
        ):
            sequence = sequences.get(request_id)
            if sequence is None:
                continue
            segment = sequence.last
            if (
                segment is None
                or segment.last_step + stride < step
                or segment.stage != sequence.stage
                or segment.num_steps >= MAX_LINKS
            ):
                segment = self._new_segment(sequence, step, sampled_at)
            segment.last_step, segment.last_at = step, sampled_at
            segment.num_steps += 1
            add_link(segment.link.saying(num_tokens, num_blocks))
            segments.append(segment)
            places.append(place)
            if is_room:
                segment.links.append(own_link)
        if is_room:
            self._num_held += len(links.links)
        else:
            self.num_links_left_out += len(links.links)
        if is_room and segments and len(self._companies) < MAX_ENGINES:
            self._companies[source.engine] = Company(planned, segments, places)

    def _settle(self) -> None:
        """Bring all segments up to date: somebody comes or goes."""
        for company in self._companies.values():
            company.settle()
        self._companies.clear()

    def _step_ids(self, source: Source, step: int) -> tuple[StepLinks, bytes]:
        """The step's ids and the link to it. Step numbers begin anew with each engine process."""
        name = f"{source.engine}.{source.generation}.{step}"
        own_id = span_id(self._run, "step", name)
        links = StepLinks(span_id(self._run, "step trace", name) << 64 | own_id, own_id)
        self._steps[source.engine, step] = links
        if len(self._steps) > MAX_STEPS:
            self._steps.popitem(last=False)
        attributes = encode_attributes(LINK_ATTRIBUTES, {span_names.STEP: step})
        return links, encode_link(encode_context(links.trace_id, links.span_id), attributes)

    def _new_segment(self, sequence: TracedSequence, step: int, sampled_at: int) -> Segment:
        own_id = span_id(self._run, "segment", f"{sequence.request_id}.{step}")
        segment = Segment(sequence.trace_id, own_id, sequence.stage, step)
        segment.first_at = sampled_at
        sequence.segments.append(segment)
        sequence.last = segment
        return segment

    def _release(self, sequence: TracedSequence) -> list[Segment]:
        self._num_held -= sum(len(segment.links) for segment in sequence.segments)
        return sequence.segments
