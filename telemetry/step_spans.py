"""StepSpans: the spans of one engine step and of its parts on every rank.

Each step is a trace of its own. A trace for a longer run would be a list of thousands of spans and links with a
root that comes last; so a link from a request opens just the step it names, and steps can be left out one by one.
"""

from collections.abc import Iterator, Mapping

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.eager_reasons import execution_of
from vllm_obs.telemetry.records import StepPlanned, WorkerStep
from vllm_obs.telemetry.span import MAX_LINKS, Process, Span, Value, child_id
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_links import StepLinks

NO_PROCESS = Process("", 0)

_SCHEDULE, _EXECUTE, _UPDATE = 1, 2, 3
_FIRST_RANK = 16
_FIRST_CHUNK = 1 << 16


class StepSpans:
    """Makes `engine.step` with its children. `engines` and `workers` say which process did what."""

    def __init__(self, engines: Mapping[str, Process], workers: Mapping[tuple[str, int], Process]) -> None:
        self._engines = engines
        self._workers = workers

    def of(self, facts: StepFacts, links: StepLinks) -> list[Span]:
        """The step's spans, its own first. One that broke off has an error, and the parts it came to."""
        core = self._engines.get(facts.engine, NO_PROCESS)
        root = self._root(facts, links, core)
        chunks = _chunks(root, links) if len(links.links) > MAX_LINKS else ()
        return [root, *chunks, *_parts(facts, root), *self._ranks(facts, root)]

    def _root(self, facts: StepFacts, links: StepLinks, core: Process) -> Span:
        ended_at = facts.planned.schedule_ended_at
        error = ""
        if facts.answered is not None:
            ended_at = facts.answered.updated_at
        elif facts.failed is not None:
            ended_at, error = facts.failed.failed_at, facts.failed.error or "failed"
        return Span(
            trace_id=links.trace_id,
            span_id=links.span_id,
            parent_id=0,
            name="engine.step",
            begun_at=facts.planned.schedule_begun_at,
            ended_at=ended_at,
            process=core,
            attributes=_attributes(facts, error),
            links=links.links[:MAX_LINKS],
            error=error,
        )

    def _ranks(self, facts: StepFacts, root: Span) -> Iterator[Span]:
        """`worker.execute` of every rank, below `execute_model`."""
        for worker in facts.workers:
            process = self._workers.get((facts.engine, worker.rank), root.process)
            number = _FIRST_RANK + 4 * worker.rank
            execute = Span(
                root.trace_id,
                child_id(root.span_id, number),
                child_id(root.span_id, _EXECUTE),
                "worker.execute",
                worker.received_at,
                worker.sampled_at,
                process,
                _rank_attributes(worker, facts.num_shards),
            )
            yield execute
            for part, (name, begun_at, ended_at) in enumerate(_rank_parts(worker), 1):
                yield _child(root, execute, number + part, name, (begun_at, ended_at))


def _child(root: Span, above: Span, number: int, name: str, moments: tuple[int, int]) -> Span:
    return Span(root.trace_id, child_id(root.span_id, number), above.span_id, name, *moments, above.process)


def _parts(facts: StepFacts, root: Span) -> Iterator[Span]:
    """`schedule`, `execute_model` and `update`, as far as the step came."""
    planned, answered = facts.planned, facts.answered
    yield _child(root, root, _SCHEDULE, "schedule", (planned.schedule_begun_at, planned.schedule_ended_at))
    executed_until = answered.sampled_at if answered is not None else root.ended_at
    if answered is not None or facts.failed is not None:
        yield _child(root, root, _EXECUTE, "execute_model", (planned.schedule_ended_at, executed_until))
    if answered is not None:
        yield _child(root, root, _UPDATE, "update", (answered.sampled_at, answered.updated_at))


def _rank_parts(worker: WorkerStep) -> Iterator[tuple[str, int, int]]:
    yield "prepare", worker.received_at, worker.prepared_at
    yield "forward", worker.prepared_at, worker.forwarded_at
    yield "sample", worker.sample_begun_at, worker.sampled_at


def _chunks(root: Span, links: StepLinks) -> Iterator[Span]:
    """Spans as long as the step for the links that are more than one span may have."""
    for number, begin in enumerate(range(MAX_LINKS, len(links.links), MAX_LINKS)):
        chunk = _child(root, root, _FIRST_CHUNK + number, "engine.step.requests", (root.begun_at, root.ended_at))
        yield chunk._replace(links=links.links[begin : begin + MAX_LINKS])


def _attributes(facts: StepFacts, error: str) -> dict[str, Value]:
    planned = facts.planned
    return _plan_attributes(planned) | {
        span_names.ENGINE: facts.engine,
        "vllm_obs.num_new_tokens": sum(facts.answered.num_new_tokens) if facts.answered is not None else None,
        "vllm_obs.num_wasted_rows": facts.answered.num_wasted_rows if facts.answered is not None else None,
        span_names.EXECUTION: _execution(facts.workers[0]) if facts.workers else None,
        span_names.NUM_PADDED_TOKENS: sum(worker.num_padded_tokens for worker in facts.workers),
        "error.type": error.partition(":")[0][:64] if error else None,
    }


def _plan_attributes(planned: StepPlanned) -> dict[str, Value]:
    return {
        span_names.STEP: planned.step,
        span_names.BATCH_SIZE: len(planned.request_ids),
        span_names.NUM_SCHEDULED_TOKENS: sum(planned.num_scheduled_tokens),
        span_names.NUM_NEW_BLOCKS: sum(planned.num_new_blocks),
        "vllm_obs.num_preempted": len(planned.preempted_ids),
        "vllm_obs.num_left_out": len(planned.left_out_ids),
        "vllm_obs.head_reason": planned.head_reason or None,
        "vllm_obs.num_running": planned.num_running,
        "vllm_obs.num_waiting": planned.num_waiting,
        "vllm_obs.num_free_blocks": planned.num_free_blocks,
        "vllm_obs.num_active_blocks": planned.num_active_blocks,
    }


def _rank_attributes(worker: WorkerStep, num_shards: int) -> dict[str, Value]:
    return {
        span_names.STEP: worker.step,
        span_names.RANK: str(worker.rank),
        span_names.PIPELINE_STAGE: worker.rank // num_shards if num_shards else None,
        "vllm_obs.num_tokens": worker.num_tokens,
        "vllm_obs.num_rows": worker.num_rows,
        span_names.EXECUTION: _execution(worker),
        span_names.NUM_PADDED_TOKENS: worker.num_padded_tokens,
    }


def _execution(worker: WorkerStep) -> str:
    return execution_of(worker.graph_size, worker.eager_reason)
