"""FactStream: consistent records of a run that never was, for tests of everything that is derived from records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fact_blocks import FactBlocks

from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineStateChanged,
    HttpRequestEnded,
    OutputsTaken,
    Record,
    RequestEnded,
    RequestKeyframe,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.view import Source

MODEL = "test-model"
API_SERVER = Source("APIServer_0", 100, 1000, "")
ENGINE = Source("EngineCore_DP0", 200, 2000, "0")

STEP_PARTS = {"schedule": 20_000, "prepare": 30_000, "forward": 900_000, "sample": 50_000, "update": 40_000}
"""Nanoseconds of a step's parts unless a test says otherwise."""


@dataclass
class FactSequence:
    """What the stream knows of a sequence it made."""

    submitted: RequestSubmitted
    num_cached: int = 0
    num_computed: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    first_token_at: int = 0
    last_token_at: int = 0
    outputs_taken_at: int = 0
    is_running: bool = False
    is_live: bool = False
    is_stopped: bool = False
    """Whether the API server ended it while the core still runs it."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return self.submitted.num_prompt_tokens + self.num_output_tokens


@dataclass
class _StepWish:
    """What a test wants of a step."""

    rows: dict[str, int]
    cached: dict[str, int]
    preempted: list[str]
    left_out: dict[str, str]
    options: Mapping[str, Any]
    parts: Mapping[str, int]


@dataclass
class FactStream:
    """Makes records of one API server and one engine in order of time; `facts` collects (source, record).

    Every moment is `now`, which each call moves on. Block counts, tables and hashes are kept as the engine keeps
    them, so all conservation laws hold unless a test breaks one with `write`. Each method returns the facts that
    it added.
    """

    now: int = 1_000_000_000
    num_blocks: int = 64
    block_size: int = 4
    engine: Source = ENGINE
    api: Source = API_SERVER
    facts: list[tuple[Source, Record]] = field(default_factory=list)
    sequences: dict[str, FactSequence] = field(default_factory=dict)
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.blocks = FactBlocks(self.num_blocks, self.block_size)

    @property
    def records(self) -> list[Record]:
        """The records without their sources."""
        return [record for _, record in self.facts]

    def of(self, source: Source) -> list[tuple[Source, Record]]:
        """The facts of one source."""
        return [fact for fact in self.facts if fact[0] == source]

    def pass_time(self, num_ns: int) -> int:
        """Let time go by; the moment it is then."""
        self.now += num_ns
        return self.now

    def write(self, source: Source, *records: Record) -> list[tuple[Source, Record]]:
        """Add records as they are."""
        added = [(source, record) for record in records]
        self.facts += added
        return added

    def describe(self, **changes: Any) -> list[tuple[Source, Record]]:
        """The engine says what it is."""
        described = EngineDescribed(
            engine_index=int(self.engine.engine),
            generation=1,
            model_names=[MODEL],
            dtype="bfloat16",
            device="cpu",
            max_model_len=4096,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            cache_dtype="auto",
            kv_cache_bytes=self.num_blocks * self.block_size * 512,
            gpu_memory_utilization=0.9,
            enable_prefix_caching=True,
            num_blocks_override=0,
            world_size=1,
            weight_bytes=1_000_000,
            flops_per_token=2_000_000,
            kv_bytes_per_token=512,
            described_at=self.pass_time(1000),
        )
        return self.write(self.engine, described._replace(**changes), EngineStateChanged("awake", self.now))

    def change_state(self, state: str) -> list[tuple[Source, Record]]:
        """The engine is awake, paused, …"""
        return self.write(self.engine, EngineStateChanged(state, self.pass_time(1000)))

    def submit(
        self, request_id: str = "r-0", *, is_taken: bool = True, **changes: Any
    ) -> list[tuple[Source, Record]]:
        """A sequence leaves the API server (HTTP request `http-ID`); the core takes it unless told otherwise."""
        received_at, parsed_at, rendered_at, tokenized_at, submitted_at = [
            self.pass_time(10_000) for _ in range(5)
        ]
        submitted = RequestSubmitted(
            request_id=request_id,
            client_index=0,
            http_id=f"http-{request_id}",
            external_id=f"label-{request_id}",
            sequence_index=0,
            num_sequences=1,
            num_prompts=1,
            operation="chat",
            is_streamed=True,
            model=MODEL,
            trace_parent="",
            received_at=received_at,
            parsed_at=parsed_at,
            rendered_at=rendered_at,
            tokenized_at=tokenized_at,
            submitted_at=submitted_at,
            num_prompt_tokens=10,
            max_tokens=16,
            priority=0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        )._replace(**changes)
        self.sequences[request_id] = FactSequence(submitted)
        return self.write(self.api, submitted) + (self.take(request_id) if is_taken else [])

    def take(self, request_id: str) -> list[tuple[Source, Record]]:
        """The core queues a sequence."""
        sequence = self.sequences[request_id]
        sequence.is_live = True
        sent = sequence.submitted
        moments = (sent.submitted_at, self.pass_time(30_000))
        return self.write(
            self.engine,
            RequestTaken(request_id, 0, *moments, sent.num_prompt_tokens, sent.max_tokens, sent.priority),
        )

    def step(
        self,
        rows: Mapping[str, int] | Iterable[str] = (),
        *,
        cached: Mapping[str, int] | None = None,
        preempted: Iterable[str] = (),
        left_out: Mapping[str, str] | None = None,
        **options: Any,
    ) -> list[tuple[Source, Record]]:
        """One step. `rows` names sequences with their numbers of tokens, or only names them (all they need).

        A row is admitted or resumed if it does not run; `cached` gives tokens found then. Rows whose known tokens
        are all computed get a token. Options: `head_reason`, `parts` (lengths, see STEP_PARTS), `is_failed`,
        `is_answered`, `is_taken` (whether the API server takes the outputs), `num_wasted_rows`.
        """
        parts = STEP_PARTS | options.get("parts", {})
        before = len(self.facts)
        self.num_steps += 1
        wanted = dict(rows) if isinstance(rows, Mapping) else dict.fromkeys(rows, 0)
        wish = _StepWish(wanted, dict(cached or {}), list(preempted), dict(left_out or {}), options, parts)
        planned = self._plan(wish)
        self._settle()
        if options.get("is_failed"):
            self.write(
                self.engine, StepFailed(self.num_steps, "RuntimeError: no", self.pass_time(1000), list(wanted))
            )
        elif wanted and options.get("is_answered", True):
            self._answer(planned, parts, options)
        return self.facts[before:]

    def release(self, request_id: str, reason: str = "stop") -> list[tuple[Source, Record]]:
        """The core lets a sequence go."""
        before = len(self.facts)
        sequence = self.sequences[request_id]
        sequence.is_live = sequence.is_running = False
        self.blocks.free(request_id)
        released = RequestReleased(
            request_id=request_id,
            finish_reason=reason,
            released_at=self.pass_time(5_000),
            num_output_tokens=sequence.num_output_tokens,
            num_computed_tokens=sequence.num_computed,
            num_cached_tokens=sequence.num_cached,
            num_preemptions=sequence.num_preemptions,
        )
        self.write(self.engine, released)
        self._settle()
        return self.facts[before:]

    def end(self, request_id: str, reason: str = "stop", **changes: Any) -> list[tuple[Source, Record]]:
        """The API server ends a sequence; `release` and `end_http` are its core's and its request's part."""
        sequence = self.sequences[request_id]
        ended = RequestEnded(
            request_id=request_id,
            client_index=0,
            finish_reason=reason,
            error="internal_error" if reason == "error" else "",
            num_prompt_tokens=sequence.submitted.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            num_cached_tokens=sequence.num_cached,
            first_token_at=sequence.first_token_at,
            last_token_at=sequence.last_token_at,
            taken_at=sequence.outputs_taken_at,
            ended_at=self.pass_time(15_000),
        )
        return self.write(self.api, ended._replace(**changes))

    def end_http(self, http_id: str, status: int = 200, **changes: Any) -> list[tuple[Source, Record]]:
        """The last byte of a reply is out."""
        sent = [each.submitted for each in self.sequences.values() if each.submitted.http_id == http_id]
        http = HttpRequestEnded(
            http_id=http_id,
            client_index=0,
            external_id=sent[0].external_id if sent else "",
            handler="/v1/chat/completions",
            method="POST",
            status=status,
            reason="" if status == 200 else "other",
            trace_parent=sent[0].trace_parent if sent else "",
            received_at=sent[0].received_at if sent else self.now,
            first_byte_at=self.now,
            ended_at=self.pass_time(25_000),
            num_request_bytes=200,
            num_response_bytes=800,
        )
        return self.write(self.api, http._replace(**changes))

    def finish(self, request_id: str, reason: str = "stop") -> list[tuple[Source, Record]]:
        """Everything that ends a sequence whose last step has been: release, ending, end of the HTTP request."""
        before = len(self.facts)
        self.release(request_id, reason)
        self.end(request_id, reason)
        if self.sequences[request_id].submitted.http_id:
            self.end_http(self.sequences[request_id].submitted.http_id)
        return self.facts[before:]

    def abort(self, request_id: str) -> list[tuple[Source, Record]]:
        """The client left: the API server ends the sequence, and the core is told."""
        before = len(self.facts)
        self.end(request_id, "abort")
        self.end_http(self.sequences[request_id].submitted.http_id, 499)
        if self.sequences[request_id].is_live:
            self.release(request_id, "abort")
        return self.facts[before:]

    def keyframes(self, first_block: int = 0, num_blocks: int | None = None) -> list[tuple[Source, Record]]:
        """Blocks and all live sequences as they are."""
        before = len(self.facts)
        self.write(self.engine, self.blocks.keyframe(self.num_steps, first_block, num_blocks or self.num_blocks))
        for request_id, sequence in self.sequences.items():
            if sequence.is_live:
                self.write(self.engine, self._keyframe_of(request_id, sequence))
        return self.facts[before:]

    def _keyframe_of(self, request_id: str, sequence: FactSequence) -> RequestKeyframe:
        table = list(self.blocks.tables.get(request_id, []))
        counts = (sequence.num_computed, sequence.submitted.num_prompt_tokens, sequence.num_output_tokens)
        return RequestKeyframe(self.num_steps, request_id, sequence.is_running, table, *counts)

    def _plan(self, wish: _StepWish) -> StepPlanned:
        begun_at = self.now
        for request_id in wish.preempted:
            self._preempt(request_id)
        new = [each for each in wish.rows if not self.sequences[each].is_running]
        admitted = [each for each in new if not self.sequences[each].num_preemptions]
        columns = self._add_rows(wish)
        num_live = sum(sequence.is_live for sequence in self.sequences.values())
        num_running = sum(sequence.is_running for sequence in self.sequences.values())
        num_active, num_cached, num_free = self.blocks.levels
        planned = StepPlanned(
            step=self.num_steps,
            schedule_begun_at=begun_at,
            schedule_ended_at=self.pass_time(wish.parts["schedule"]),
            request_ids=list(wish.rows),
            num_scheduled_tokens=[column[0] for column in columns],
            num_computed_tokens=[column[1] for column in columns],
            num_new_blocks=[column[2] for column in columns],
            admitted_ids=admitted,
            admitted_cached_tokens=[self.sequences[each].num_cached for each in admitted],
            resumed_ids=[each for each in new if each not in admitted],
            preempted_ids=wish.preempted,
            left_out_ids=list(wish.left_out),
            left_out_reasons=list(wish.left_out.values()),
            head_reason=wish.options.get("head_reason", "kv_blocks" if num_live > num_running else ""),
            num_running=num_running,
            num_waiting=num_live - num_running,
            num_free_blocks=num_free,
            num_cached_blocks=num_cached,
            num_active_blocks=num_active,
        )
        self.write(self.engine, planned)
        return planned

    def _add_rows(self, wish: _StepWish) -> list[tuple[int, int, int]]:
        """Advance the rows: of each the tokens it runs, those computed before, and its new blocks."""
        columns = []
        for request_id, num_wanted in wish.rows.items():
            sequence = self.sequences[request_id]
            num_found = wish.cached.get(request_id, 0)
            if not sequence.is_running:
                sequence.is_running = True
                sequence.num_computed = num_found
                sequence.num_cached = sequence.num_cached if sequence.num_preemptions else num_found
            num_before = sequence.num_computed
            num_tokens = num_wanted or sequence.num_tokens - num_before
            sequence.num_computed += num_tokens
            columns.append(
                (num_tokens, num_before, self.blocks.grow(request_id, sequence.num_computed, num_found))
            )
        return columns

    def _answer(self, planned: StepPlanned, parts: Mapping[str, int], options: Mapping[str, Any]) -> None:
        received_at = self.pass_time(10_000)
        prepared_at, forwarded_at = self.pass_time(parts["prepare"]), self.pass_time(parts["forward"])
        worked_at = self.pass_time(parts["sample"])
        num_rows, num_tokens = len(planned.request_ids), sum(planned.num_scheduled_tokens)
        moments = (received_at, prepared_at, forwarded_at, forwarded_at, worked_at)
        self.write(self.engine, WorkerStep(planned.step, 0, *moments, num_tokens, num_rows))
        sampled_at = self.pass_time(5_000)
        sampled = [
            each
            for each in planned.request_ids
            if self.sequences[each].num_computed == self.sequences[each].num_tokens
        ]
        for request_id in planned.request_ids:
            self.blocks.fill(request_id, self.sequences[request_id].num_computed)
        for request_id in sampled:
            sequence = self.sequences[request_id]
            sequence.num_output_tokens += 1
            sequence.first_token_at = sequence.first_token_at or sampled_at
            sequence.last_token_at = sampled_at
        updated_at = self.pass_time(parts["update"])
        num_wasted = options.get("num_wasted_rows", 0)
        self.write(
            self.engine,
            StepAnswered(
                planned.step, forwarded_at, sampled_at, updated_at, sampled, [1] * len(sampled), num_wasted
            ),
        )
        self._settle()
        if sampled and options.get("is_taken", True):
            self._take_outputs(sampled, sampled_at)

    def _take_outputs(self, sampled: list[str], sampled_at: int) -> None:
        sent_at, taken_at, processed_at = [self.pass_time(10_000) for _ in range(3)]
        for request_id in sampled:
            self.sequences[request_id].outputs_taken_at = taken_at
        moments = (sampled_at, sent_at, taken_at, processed_at)
        engine_index = int(self.engine.engine)
        self.write(self.api, OutputsTaken(self.num_steps, engine_index, 0, *moments, len(sampled)))

    def _preempt(self, request_id: str) -> None:
        sequence = self.sequences[request_id]
        sequence.is_running = False
        sequence.num_preemptions += 1
        sequence.num_computed = 0
        self.blocks.free(request_id)

    def _settle(self) -> None:
        self.write(self.engine, *self.blocks.take_records(self.num_steps))
