"""Records and closed ledgers of a small run, by hand, for tests of spans: every moment is a round number."""

from dataclasses import dataclass, field
from typing import Any

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import (
    HttpRequestEnded,
    RequestEnded,
    RequestSubmitted,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.span import Span
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import Source

API = Source("APIServer_0", 10, 1, "")
CORE = Source("EngineCore_DP0", 11, 2, "0")
WORKER = Source("Worker_DP0_TP1", 13, 4, "0")

TRACE = 0x11112222333344445555666677778888
CALLER = 0xABCDABCDABCDABCD
PARENT = f"00-{TRACE:032x}-{CALLER:016x}-01"
NO_PARENT = f"00-{TRACE:032x}-{0:016x}-01"
NOT_SAMPLED = f"00-{TRACE:032x}-{CALLER:016x}-00"


@dataclass
class SpanList:
    """A sink that keeps the spans."""

    spans: list[Span] = field(default_factory=list)

    def offer(self, span: Span) -> bool:
        self.spans.append(span)
        return True

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        [span] = self.named(name)
        return span


def submitted(request_id: str = "r-0-0", **changes: Any) -> RequestSubmitted:
    """A chat request of one sequence, received at 1000 and sent to the core at 1400."""
    values = {
        "request_id": request_id,
        "client_index": 0,
        "http_id": "r",
        "external_id": "label",
        "sequence_index": 0,
        "num_sequences": 1,
        "num_prompts": 1,
        "operation": "chat",
        "is_streamed": True,
        "model": "tiny",
        "trace_parent": PARENT,
        "received_at": 1000,
        "parsed_at": 1100,
        "rendered_at": 1200,
        "tokenized_at": 1300,
        "submitted_at": 1400,
        "num_prompt_tokens": 7,
        "max_tokens": 16,
        "priority": 0,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
    }
    return RequestSubmitted(**(values | changes))


def ended(request_id: str = "r-0-0", **changes: Any) -> RequestEnded:
    """It stopped after three tokens, at 5200."""
    values = {
        "request_id": request_id,
        "client_index": 0,
        "finish_reason": "stop",
        "error": "",
        "num_prompt_tokens": 7,
        "num_output_tokens": 3,
        "num_cached_tokens": 4,
        "first_token_at": 3000,
        "last_token_at": 5000,
        "taken_at": 5100,
        "ended_at": 5200,
    }
    return RequestEnded(**(values | changes))


def http_ended(**changes: Any) -> HttpRequestEnded:
    """Its reply was accepted by the client's socket at 6000."""
    values = {
        "http_id": "r",
        "client_index": 0,
        "external_id": "label",
        "handler": "/v1/chat/completions",
        "method": "POST",
        "status": 200,
        "reason": "",
        "trace_parent": PARENT,
        "received_at": 1000,
        "first_byte_at": 3100,
        "ended_at": 6000,
        "num_request_bytes": 100,
        "num_response_bytes": 900,
    }
    return HttpRequestEnded(**(values | changes))


STAGES = (
    ("receive", 1100),
    ("render", 1200),
    ("tokenize", 1300),
    ("submit", 1500),
    ("queue", 2000, "token_budget"),
    ("prefill", 3000),
    ("decode", 5000),
    ("return", 5100),
    ("detokenize", 5200),
    ("deliver", 6000),
)


def intervals(stages: tuple[tuple[Any, ...], ...] = STAGES, begun_at: int = 1000) -> list[Interval]:
    """Intervals that touch, from stages with their ends."""
    found = []
    for stage, ended_at, *reason in stages:
        found.append(Interval(stage, begun_at, ended_at, *(reason or [""])))
        begun_at = ended_at
    return found


def ledger(request_id: str = "r-0-0", **changes: Any) -> SequenceLedger:
    """The closed ledger of that sequence."""
    values: dict[str, Any] = {
        "submitted": submitted(request_id),
        "engine": "0",
        "intervals": intervals(),
        "num_cached_tokens": 4,
        "first_token_at": 3000,
        "last_token_at": 5000,
        "ended": ended(request_id),
        "http": http_ended(),
        "is_closed": True,
    }
    return SequenceLedger(**(values | changes))


def planned(step: int, request_ids: list[str], at: int, **changes: Any) -> StepPlanned:
    """A step planned from `at` to `at + 10` that runs a token of each."""
    values = {
        "step": step,
        "schedule_begun_at": at,
        "schedule_ended_at": at + 10,
        "request_ids": request_ids,
        "num_scheduled_tokens": [1] * len(request_ids),
        "num_computed_tokens": [0] * len(request_ids),
        "num_new_blocks": [0] * len(request_ids),
        "admitted_ids": [],
        "admitted_cached_tokens": [],
        "resumed_ids": [],
        "preempted_ids": [],
        "left_out_ids": [],
        "left_out_reasons": [],
        "head_reason": "",
        "num_running": len(request_ids),
        "num_waiting": 0,
        "num_free_blocks": 90,
        "num_cached_blocks": 5,
        "num_active_blocks": 5,
    }
    return StepPlanned(**(values | changes))


def answered(step: int, request_ids: list[str], at: int) -> StepAnswered:
    """The same step's answer: executed at `at + 80`, sampled at `at + 90`, applied at `at + 100`."""
    return StepAnswered(step, at + 80, at + 90, at + 100, request_ids, [1] * len(request_ids), 0)


def worker_step(step: int, at: int, rank: int = 0) -> WorkerStep:
    """One rank's part of it."""
    return WorkerStep(step, rank, at + 20, at + 30, at + 60, at + 70, at + 85, 1, 1)


def step_facts(step: int, request_ids: list[str], at: int, num_ranks: int = 1, **changes: Any) -> StepFacts:
    """The step with all its parts."""
    return StepFacts(
        engine="0",
        planned=planned(step, request_ids, at, **changes),
        workers=[worker_step(step, at, rank) for rank in range(num_ranks)],
        answered=answered(step, request_ids, at),
    )
