"""A step's spans: its parts on every rank, and links both ways with the sequences that ran in it."""

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from otlp_receiver import plain_attributes
from span_facts import (
    API,
    CORE,
    NOT_SAMPLED,
    TRACE,
    WORKER,
    SpanList,
    answered,
    http_ended,
    intervals,
    ledger,
    planned,
    step_facts,
    submitted,
)

from vllm_obs.telemetry import step_links
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.otlp_encoding import encode_span
from vllm_obs.telemetry.records import EngineDescribed, StepFailed, TelemetrySet
from vllm_obs.telemetry.span import Process, Span
from vllm_obs.telemetry.spans import STAGES, SpansView
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_links import TracedRows
from vllm_obs.telemetry.view import Source

RUN = "run-1"
Link = tuple[int, int, dict[str, object]]


class Run:
    """Feeds a view as the Observer does: records first, then what is derived from them."""

    def __init__(self, **options: object) -> None:
        self.sink = SpanList()
        self.view = SpansView(RUN, self.sink, **{"spans_per_second": 1e6, **options})  # type: ignore[arg-type]
        self.core = CORE

    def step(self, step: int, ids: list[str], at: int, num_ranks: int = 1, **changes: object) -> StepFacts:
        facts = step_facts(step, ids, at, num_ranks, **changes)
        self.view.record(self.core, facts.planned)
        for worker in facts.workers:
            self.view.record(WORKER if worker.rank else self.core, worker)
        assert facts.answered is not None
        self.view.record(self.core, facts.answered)
        self.view.step_closed(facts)
        return facts

    def end(self, closed: SequenceLedger) -> None:
        self.view.record(API, http_ended(http_id=closed.submitted.http_id))
        self.view.sequence_closed(closed)


def links_of(span: Span) -> list[Link]:
    """A span's links as a receiver sees them: trace, span, attributes."""
    encoded = encode_span(span, 0)
    # Without the tag and the length of the field.
    decoded = OtlpSpan.FromString(encoded[2:] if encoded[1] < 128 else encoded[3 if encoded[2] < 128 else 4 :])
    return [
        (
            int.from_bytes(link.trace_id, "big"),
            int.from_bytes(link.span_id, "big"),
            plain_attributes(link.attributes),
        )
        for link in decoded.links
    ]


def targets(spans: list[Span]) -> list[tuple[int, int]]:
    return [(trace, own) for span in spans for trace, own, _ in links_of(span)]


def test_a_step_has_its_parts_in_the_processes_that_did_them() -> None:
    run = Run()
    run.view.record(API, submitted())
    run.step(1, ["r-0-0"], 2000, num_ranks=2, num_new_blocks=[1], num_scheduled_tokens=[7])
    core, worker = Process("EngineCore_DP0", 11), Process("Worker_DP0_TP1", 13, "1")
    own = Process("EngineCore_DP0", 11, "0")
    by_id = {span.span_id: span.name for span in run.sink.spans}
    shown = [
        (span.name, by_id.get(span.parent_id, ""), span.begun_at, span.ended_at, span.process)
        for span in run.sink.spans
    ]
    assert shown == [
        ("engine.step", "", 2000, 2100, core),
        ("schedule", "engine.step", 2000, 2010, core),
        ("execute_model", "engine.step", 2010, 2090, core),
        ("update", "engine.step", 2090, 2100, core),
        ("worker.execute", "execute_model", 2020, 2085, own),
        ("prepare", "worker.execute", 2020, 2030, own),
        ("forward", "worker.execute", 2030, 2060, own),
        ("sample", "worker.execute", 2070, 2085, own),
        ("worker.execute", "execute_model", 2020, 2085, worker),
        ("prepare", "worker.execute", 2020, 2030, worker),
        ("forward", "worker.execute", 2030, 2060, worker),
        ("sample", "worker.execute", 2070, 2085, worker),
    ]
    assert len(by_id) == len(run.sink.spans)
    assert len({span.trace_id for span in run.sink.spans}) == 1
    assert run.sink.one("engine.step").attributes == {
        "vllm_obs.step": 1,
        "vllm_obs.engine": "0",
        "messaging.batch.message_count": 1,
        "vllm_obs.num_scheduled_tokens": 7,
        "vllm_obs.num_new_blocks": 1,
        "vllm_obs.num_preempted": 0,
        "vllm_obs.num_left_out": 0,
        "vllm_obs.head_reason": None,
        "vllm_obs.num_running": 1,
        "vllm_obs.num_waiting": 0,
        "vllm_obs.num_free_blocks": 90,
        "vllm_obs.num_active_blocks": 5,
        "vllm_obs.num_new_tokens": 1,
        "vllm_obs.num_wasted_rows": 0,
        "vllm_obs.execution": "no_gpu",
        "vllm_obs.num_padded_tokens": 0,
        "error.type": None,
    }


def test_links_lead_from_stage_to_step_and_back() -> None:
    run = Run()
    run.view.record(API, submitted())
    for step, at in enumerate((2900, 3900, 4900), 1):
        run.step(step, ["r-0-0"], at, num_scheduled_tokens=[7 if step == 1 else 1])
    run.end(ledger(intervals=intervals((("queue", 2910), ("prefill", 2990), ("decode", 4990), ("deliver", 6000)))))
    steps = run.sink.named("engine.step")
    prefill, decode = run.sink.one("prefill"), run.sink.one("decode")
    phases = ("prefill", "decode", "decode")
    num_tokens = (7, 1, 1)
    assert [links_of(step) for step in steps] == [
        [
            (
                TRACE,
                stage.span_id,
                {
                    "vllm_obs.num_scheduled_tokens": num,
                    "vllm_obs.phase": phase,
                    "vllm_obs.num_new_blocks": 0,
                },
            )
        ]
        for stage, phase, num in zip((prefill, decode, decode), phases, num_tokens, strict=True)
    ]
    linked = [(step.trace_id, step.span_id, {"vllm_obs.step": n}) for n, step in enumerate(steps, 1)]
    assert links_of(prefill) == linked[:1]
    assert links_of(decode) == linked[1:]
    assert decode.attributes == {
        "vllm_obs.stage": "decode",
        "vllm_obs.first_step": 2,
        "vllm_obs.last_step": 3,
        "vllm_obs.num_steps": 2,
    }
    assert run.sink.one("queue").links == ()


def test_decoding_is_cut_into_segments_of_at_most_128_steps() -> None:
    run = Run()
    run.view.record(API, submitted())
    for step in range(1, 302):
        run.step(step, ["r-0-0"], 1000 * step)
    run.end(ledger(intervals=intervals((("prefill", 1090), ("decode", 301_090), ("deliver", 302_000)))))
    decodes = run.sink.named("decode")
    assert [(span.begun_at, span.ended_at, len(span.links)) for span in decodes] == [
        (1090, 129_090, 128),
        (129_090, 257_090, 128),
        (257_090, 301_090, 44),
    ]
    assert_all_links_resolve(run.sink.spans)


def test_a_stall_a_preemption_and_steps_after_the_end_leave_no_link_dangling() -> None:
    run = Run()
    run.view.record(API, submitted("a"))
    run.view.record(API, submitted("b", http_id="s"))
    run.step(1, ["a", "b"], 1000)
    run.step(2, ["b"], 2000, left_out_ids=["a"])
    run.step(3, ["a", "b"], 3000)
    run.step(4, ["b"], 4000, preempted_ids=["a"])
    run.step(5, ["b", "a"], 5000, resumed_ids=["a"])
    run.step(6, ["b", "a"], 6000)
    run.step(7, ["a"], 7000)
    stages = (
        ("prefill", 1090),
        ("stalled", 3010),
        ("decode", 3090),
        ("decode", 4010),
        ("preempted", 5010),
        ("recompute", 5090),
        ("decode", 6090),
        ("deliver", 6500),
    )
    run.end(ledger("a", submitted=submitted("a"), intervals=intervals(stages)))
    run.end(
        ledger(
            "b",
            submitted=submitted("b", http_id="s"),
            intervals=intervals((("prefill", 1090), ("decode", 6090), ("deliver", 6500))),
        )
    )
    assert_all_links_resolve(run.sink.spans)
    phases = [
        attributes["vllm_obs.phase"] for span in run.sink.named("engine.step") for *_, attributes in links_of(span)
    ]
    assert phases.count("prefill") == 2
    assert phases.count("recompute") == 1


def assert_all_links_resolve(spans: list[Span]) -> None:
    known = {(span.trace_id, span.span_id) for span in spans}
    assert len(known) == len(spans)
    linked = targets(spans)
    assert linked
    assert [target for target in linked if target not in known] == []


def test_a_large_batch_is_linked_in_chunks() -> None:
    run = Run()
    ids = [f"r{number}" for number in range(300)]
    for request_id in ids:
        run.view.record(API, submitted(request_id, http_id=request_id))
    run.step(1, ids, 1000)
    root = run.sink.one("engine.step")
    chunks = run.sink.named("engine.step.requests")
    assert [len(links_of(span)) for span in (root, *chunks)] == [128, 128, 44]
    assert {span.parent_id for span in chunks} == {root.span_id}
    assert len(set(targets([root, *chunks]))) == 300


def test_only_steps_with_a_sampled_request_are_spans_and_only_those_are_linked() -> None:
    run = Run()
    run.view.record(API, submitted("no", trace_parent=NOT_SAMPLED))
    run.view.record(API, submitted("yes"))
    run.step(1, ["no"], 1000)
    run.step(2, ["no", "yes"], 2000)
    [root] = run.sink.named("engine.step")
    assert (root.attributes["vllm_obs.step"], root.attributes["messaging.batch.message_count"]) == (2, 2)
    assert len(root.links) == 1


def test_below_level_three_there_are_no_steps() -> None:
    run = Run(detail_level=STAGES)
    run.view.record(API, submitted())
    run.step(1, ["r-0-0"], 1000)
    assert run.sink.spans == []
    run.view.record(API, TelemetrySet(3, 1.0, 1500))
    run.view.record(API, submitted("r-0-1"))
    run.step(2, ["r-0-1"], 2000)
    assert len(run.sink.named("engine.step")) == 1


def test_a_step_that_failed_says_so() -> None:
    run = Run()
    run.view.record(API, submitted())
    plan = planned(1, ["r-0-0"], 1000)
    failed = StepFailed(1, "RuntimeError: no more", 1070, ["r-0-0"])
    run.view.record(CORE, plan)
    run.view.record(CORE, failed)
    run.view.step_closed(StepFacts("0", plan, failed=failed))
    assert [(span.name, span.begun_at, span.ended_at, span.error) for span in run.sink.spans] == [
        ("engine.step", 1000, 1070, "RuntimeError: no more"),
        ("schedule", 1000, 1010, ""),
        ("execute_model", 1010, 1070, ""),
    ]
    assert run.sink.spans[0].attributes["error.type"] == "RuntimeError"
    assert len(run.sink.spans[0].links) == 1


def test_an_engine_started_again_has_steps_of_its_own() -> None:
    run = Run()
    run.view.record(API, submitted())
    run.step(1, ["r-0-0"], 1000)
    run.core = Source("EngineCore_DP0", 21, 9, "0")
    described = EngineDescribed(0, 1, ["tiny"], "", "", 1, 1, 1, 1, 1, "", 0, 0.0, True, 0, 1, 0, 0, 0, 1500)
    run.view.record(run.core, described)
    run.step(1, ["r-0-0"], 2000)
    first, second = run.sink.named("engine.step")
    assert first.trace_id != second.trace_id
    assert (first.process.pid, second.process.pid) == (11, 21)


def test_over_budget_steps_give_way() -> None:
    run = Run(spans_per_second=20.0)
    run.view.record(API, submitted())
    for step in range(1, 20):
        run.step(step, ["r-0-0"], 1000 * step)
    assert len(run.sink.spans) == 40
    assert run.view.num_spans_over_budget == 19 * 8 - 40


def test_what_is_kept_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_links, "MAX_SEQUENCES", 10)
    monkeypatch.setattr(step_links, "MAX_HELD_LINKS", 50)
    monkeypatch.setattr(step_links, "MAX_STEPS", 5)
    rows = TracedRows(RUN)
    for number in range(25):
        rows.begin(submitted(f"r{number}"))
    ids = [f"r{number}" for number in range(25)]
    for step in range(1, 10):
        rows.planned(CORE, planned(step, ids, step * 1000))
        rows.answered(CORE, answered(step, ids, step * 1000))
    for step in range(100, 200):
        rows.planned(CORE, planned(step, ids, step * 1000))
    assert (len(rows), rows.num_links_left_out) == (10, 60)
    assert (len(rows._steps), len(rows._plans)) == (5, 64)
    assert sum(len(segment.links) for request_id in ids for segment in rows.end(request_id)) == 30
    assert (len(rows), rows._num_held) == (0, 0)


def test_a_trace_has_every_rank_of_a_pipeline_and_says_its_stage() -> None:
    run = Run()
    run.view.record(API, submitted("a"))
    facts = step_facts(7, ["a"], 1000, 6)
    facts.num_shards = 3
    run.view.record(run.core, facts.planned)
    for worker in facts.workers:
        host = "node1" if worker.rank >= 3 else ""
        role = f"Worker_TP{worker.rank % 3}_PP{worker.rank // 3}"
        run.view.record(WORKER._replace(role=role, pid=300 + worker.rank, host=host), worker)
    assert facts.answered is not None
    run.view.record(run.core, facts.answered)
    run.view.step_closed(facts)
    ranks = [span for span in run.sink.spans if span.name == "worker.execute"]
    assert [span.process.role for span in ranks] == [f"Worker_TP{t}_PP{p}" for p in range(2) for t in range(3)]
    assert [span.attributes["vllm_obs.pipeline.stage"] for span in ranks] == [0, 0, 0, 1, 1, 1]
    assert [span.process.host for span in ranks] == [""] * 3 + ["node1"] * 3
    assert len({span.trace_id for span in run.sink.spans}) == 1


@pytest.mark.parametrize(("num_stages", "num_segments"), [(1, 3), (2, 1)])
def test_steps_of_others_in_between_cut_a_sequence_only_where_there_is_no_pipeline(
    num_stages: int, num_segments: int
) -> None:
    rows = TracedRows(RUN)
    described = EngineDescribed(0, 1, ["tiny"], "", "", 1, 1, 1, 1, 1, "", 0, 0.0, True, 0, 2, 0, 0, 0, 1500)
    rows.described(CORE, described._replace(num_stages=num_stages))
    rows.begin(submitted("a"))
    for step in (3, 5, 7):
        rows.planned(CORE, planned(step, ["a"], 1000 * step))
        rows.answered(CORE, answered(step, ["a"], 1000 * step)._replace(request_ids=[]))
    segments = rows.end("a")
    assert [segment.num_steps for segment in segments] == [3 // num_segments] * num_segments
