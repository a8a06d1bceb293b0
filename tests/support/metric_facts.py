"""A made-up run told to a RunState with a MetricsView: one API server, one engine, a clock that the test moves."""

import math
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from vllm_obs.telemetry.exposition import Exposition
from vllm_obs.telemetry.metrics import MetricsView
from vllm_obs.telemetry.metrics_ports import MetricsPorts
from vllm_obs.telemetry.metrics_settings import MetricsSettings
from vllm_obs.telemetry.outside_counts import OutsidePorts
from vllm_obs.telemetry.process_reader import ProcessNumbers, ProcessReader
from vllm_obs.telemetry.records import (
    BlocksChanged,
    EngineDescribed,
    HttpRequestEnded,
    OutputsTaken,
    Record,
    RequestEnded,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Source

MS = 10**6
API = Source("APIServer_0", 100, 1, "")
CORE = Source("EngineCore_DP0", 200, 2, "0")
TRACED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODEL = "model"
BLOCK_SIZE = 16

DESCRIBED = EngineDescribed(
    engine_index=0,
    generation=1,
    model_names=[MODEL],
    dtype="float32",
    device="cpu",
    max_model_len=2048,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    num_blocks=100,
    block_size=BLOCK_SIZE,
    cache_dtype="float32",
    kv_cache_bytes=4096,
    gpu_memory_utilization=0.9,
    enable_prefix_caching=True,
    num_blocks_override=0,
    world_size=2,
    weight_bytes=1000,
    flops_per_token=500,
    kv_bytes_per_token=10,
    described_at=1,
)


class FakeProcesses(ProcessReader):
    """Processes by pid as the test says; those that are `unreadable` live all the same."""

    def __init__(self, *numbers: ProcessNumbers) -> None:
        super().__init__()
        self.by_pid = {each.pid: each for each in numbers}
        self.unreadable: set[int] = set()

    def read(self, pid: int) -> ProcessNumbers | None:
        return self.by_pid.get(pid) if pid not in self.unreadable else None

    def is_gone(self, pid: int) -> bool:
        return pid not in self.by_pid

    def max_fds(self, pid: int) -> int:
        return 1024

    def started_at(self, numbers: ProcessNumbers) -> float:
        return 1.7e9


class MetricFacts:
    """Tells facts in the order in which the processes would record them, a millisecond between any two moments."""

    def __init__(self, outside: OutsidePorts | None = None, **settings: Any) -> None:
        self.now = 1000 * MS
        self.state = RunState()
        self.processes = FakeProcesses()
        self.outside = outside or OutsidePorts()
        self.view = self.new_view(**settings)
        self.state.add_view(self.view)
        self._submitted: dict[str, RequestSubmitted] = {}
        self._taken: dict[str, RequestTaken] = {}
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._num_tokens: dict[str, list[int]] = {}
        self._was_admitted: set[str] = set()
        self._waiting: dict[str, None] = {}
        self._free = list(range(DESCRIBED.num_blocks))
        self._step = 0
        self._plans: dict[int, StepPlanned] = {}
        self.execution: dict[str, Any] = {}
        """How the ranks run their parts: fields of WorkerStep."""

    def new_view(self, **settings: Any) -> MetricsView:
        """A view of this run that has seen nothing."""
        known = {"model_name": MODEL, "version": "1.2.3", "wall_offset_ns": 10**18} | settings
        ports = MetricsPorts(self.state.engines.get, self.outside, self.processes)
        return MetricsView(MetricsSettings(**known), ports)

    def later(self, milliseconds: float = 1) -> int:
        """Let time pass; the moment it is then."""
        self.now += int(milliseconds * MS)
        return self.now

    def tell(self, source: Source, record: Record) -> None:
        """Any record."""
        self.state.apply(source, record)

    def describe(self, **changes: Any) -> None:
        """The engine is up."""
        self.tell(CORE, DESCRIBED._replace(described_at=self.later(), **changes))

    def submit(self, request_id: str, num_prompt_tokens: int = 10, max_tokens: int = 2, **changes: Any) -> None:
        """An API server takes a request, a millisecond for each stage, and sends a sequence."""
        moments = {
            name: self.later()
            for name in ("received_at", "parsed_at", "rendered_at", "tokenized_at", "submitted_at")
        }
        record = RequestSubmitted(
            request_id=request_id,
            client_index=0,
            http_id="",
            external_id="",
            sequence_index=0,
            num_sequences=1,
            num_prompts=1,
            operation="chat",
            is_streamed=False,
            model=MODEL,
            trace_parent="",
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            priority=0,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            **moments,
        )
        self._submitted[request_id] = record._replace(**changes)
        self.tell(API, self._submitted[request_id])

    def take(self, request_id: str, **changes: bool) -> None:
        """The core queues it."""
        sent = self._submitted[request_id]
        record = RequestTaken(
            request_id, 0, sent.submitted_at, self.later(), sent.num_prompt_tokens, sent.max_tokens, 0
        )
        record = record._replace(**changes)
        self._taken[request_id], self._waiting[request_id] = record, None
        self._tables[request_id], self._num_tokens[request_id] = [], []
        self.tell(CORE, record)

    def plan(
        self,
        rows: dict[str, int],
        cached: dict[str, int] | None = None,
        preempted: tuple[str, ...] = (),
        head_reason: str = "",
        grammar_ids: tuple[str, ...] = (),
    ) -> int:
        """Plan a step of so many tokens by request; its number. Whoever waits is admitted or resumed by it."""
        self._step += 1
        begun_at = self.later()
        freed = [(request_id, self._lose(request_id)) for request_id in preempted]
        entering = [request_id for request_id in rows if request_id in self._waiting]
        for request_id in entering:
            del self._waiting[request_id]
            self._computed[request_id] = (cached or {}).get(request_id, 0)
        for request_id in preempted:
            self._waiting[request_id] = None
        begins = [self._computed[request_id] for request_id in rows]
        grown = [(request_id, self._grow(request_id, num)) for request_id, num in rows.items()]
        admitted = [request_id for request_id in entering if request_id not in self._was_admitted]
        self._was_admitted.update(admitted)
        num_active = DESCRIBED.num_blocks - len(self._free)
        record = StepPlanned(
            step=self._step,
            schedule_begun_at=begun_at,
            schedule_ended_at=self.later(),
            request_ids=list(rows),
            num_scheduled_tokens=list(rows.values()),
            num_computed_tokens=begins,
            num_new_blocks=[len(blocks) for _, blocks in grown],
            admitted_ids=admitted,
            admitted_cached_tokens=[(cached or {}).get(request_id, 0) for request_id in admitted],
            resumed_ids=[request_id for request_id in entering if request_id not in admitted],
            preempted_ids=list(preempted),
            left_out_ids=[],
            left_out_reasons=[],
            head_reason=head_reason or ("kv_blocks" if self._waiting else ""),
            num_running=len(self._taken) - len(self._waiting),
            num_waiting=len(self._waiting),
            num_free_blocks=len(self._free),
            num_cached_blocks=0,
            num_active_blocks=num_active,
            grammar_ids=list(grammar_ids),
        )
        self._plans[self._step] = record
        self.tell(CORE, record)
        self._tell_blocks([row for row in grown if row[1]], freed)
        return self._step

    def answer(self, step: int, *with_token: str, num_wasted_rows: int = 0) -> None:
        """The step's results come; these sequences get a token each. Every phase takes a millisecond."""
        plan = self._plans.pop(step)
        received_at, prepared_at, forwarded_at, sample_begun_at, sampled_at = (self.later() for _ in range(5))
        moments = (received_at, prepared_at, forwarded_at, sample_begun_at, sampled_at)
        num_tokens, num_rows = sum(plan.num_scheduled_tokens), len(plan.request_ids)
        for rank in range(DESCRIBED.world_size):
            self.tell(CORE, WorkerStep(step, rank, *moments, num_tokens, num_rows, **self.execution))
        back_at = self.later()
        updated_at = self.later()
        tokens = [1] * len(with_token)
        self.tell(
            CORE,
            StepAnswered(step, forwarded_at, back_at, updated_at, list(with_token), tokens, num_wasted_rows),
        )
        for request_id in with_token:
            self._num_tokens[request_id].append(back_at)
        if with_token:
            taken_at = self.later(2)
            self.tell(API, OutputsTaken(step, 0, 0, back_at, updated_at, taken_at, self.later(), len(with_token)))

    def run(self, rows: dict[str, int], *with_token: str, cached: dict[str, int] | None = None) -> None:
        """Plan a step and answer it."""
        self.answer(self.plan(rows, cached), *with_token)

    def release(self, request_id: str, reason: str = "length") -> None:
        """The core lets go of it."""
        tokens = self._num_tokens[request_id]
        num_cached = 0
        record = RequestReleased(
            request_id, reason, self.later(), len(tokens), self._computed.get(request_id, 0), num_cached, 0
        )
        self.tell(CORE, record)
        self._tell_blocks([], [(request_id, self.forget(request_id))])

    def forget(self, request_id: str) -> list[int]:
        """The core lets go of it and nobody is told; the blocks it had."""
        del self._taken[request_id]
        self._waiting.pop(request_id, None)
        return self._lose(request_id)

    def end(self, request_id: str, reason: str = "length", **changes: Any) -> None:
        """The API server ends it."""
        tokens = self._num_tokens.get(request_id, [])
        record = RequestEnded(
            request_id=request_id,
            client_index=0,
            finish_reason=reason,
            error="",
            num_prompt_tokens=self._submitted[request_id].num_prompt_tokens,
            num_output_tokens=len(tokens),
            num_cached_tokens=0,
            first_token_at=tokens[0] if tokens else 0,
            last_token_at=tokens[-1] if tokens else 0,
            taken_at=self.later() if tokens else 0,
            ended_at=self.later(),
        )
        self.tell(API, record._replace(**changes))

    def finish(self, request_id: str, reason: str = "length", **changes: Any) -> None:
        """The core releases it and the API server ends it."""
        self.release(request_id, reason)
        self.end(request_id, reason, **changes)

    def end_http(self, status: int = 200, **changes: Any) -> None:
        """An HTTP request is over after a quarter of a second."""
        record = HttpRequestEnded(
            http_id="",
            client_index=0,
            external_id="",
            handler="/v1/chat/completions",
            method="POST",
            status=status,
            reason="",
            trace_parent="",
            received_at=self.now,
            first_byte_at=self.now,
            ended_at=self.later(250),
            num_request_bytes=100,
            num_response_bytes=1000,
        )
        self.tell(API, record._replace(**changes))

    def text(self, accept: str = "", view: MetricsView | None = None) -> str:
        """What a scraper gets."""
        return Exposition(view or self.view).render(accept, self.now)[0].decode()

    def samples(self, *prefixes: str, view: MetricsView | None = None) -> dict[str, float]:
        """Samples of these names that are not zero, as `name{label=value,…}`, the engine's labels left out."""
        return {
            shown_name(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(self.text(view=view))
            for sample in family.samples
            if sample.name.startswith(prefixes) and sample.value and "le" not in sample.labels
        }

    def _grow(self, request_id: str, num_tokens: int) -> list[int]:
        self._computed[request_id] += num_tokens
        table = self._tables[request_id]
        num_more = math.ceil(self._computed[request_id] / BLOCK_SIZE) - len(table)
        blocks = [self._free.pop(0) for _ in range(max(0, num_more))]
        table += blocks
        return blocks

    def _lose(self, request_id: str) -> list[int]:
        blocks = self._tables[request_id]
        self._tables[request_id] = []
        self._free += blocks
        return blocks

    def _tell_blocks(self, grown: list[tuple[str, list[int]]], freed: list[tuple[str, list[int]]]) -> None:
        freed = [row for row in freed if row[1]]
        if grown or freed:
            request_ids = [row[0] for row in grown + freed]
            allocated = [row[1] for row in grown] + [[] for _ in freed]
            given_back: list[list[int]] = [[] for _ in grown] + [row[1] for row in freed]
            self.tell(CORE, BlocksChanged(self._step, request_ids, allocated, given_back, [0] * len(request_ids)))


def shown_name(name: str, labels: dict[str, str]) -> str:
    """A sample's name with its labels, less the engine's."""
    further = {label: value for label, value in labels.items() if label not in ("engine", "model_name")}
    inner = ",".join(f"{label}={value}" for label, value in sorted(further.items()))
    return f"{name}{{{inner}}}" if inner else name


def begun_facts(**settings: Any) -> MetricFacts:
    """A run whose engine is up."""
    facts = MetricFacts(**settings)
    facts.describe()
    return facts


def generate_two_tokens(facts: MetricFacts) -> None:
    """A prompt of ten tokens in chunks of four, and two tokens."""
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 4})
    facts.run({"a": 4})
    facts.run({"a": 2}, "a")
    facts.run({"a": 1}, "a")
    facts.finish("a")


def rounded(samples: dict[str, float]) -> dict[str, float]:
    """Without what adding fractions leaves."""
    return {name: round(value, 9) for name, value in samples.items()}
