"""How the engines stood where a recording's span begins, as the keyframes with which a replay begins there."""

from collections.abc import Iterable, Iterator

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import BlocksKeyframe, RequestKeyframe
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, RecordsLost, Source

BLOCKS_A_KEYFRAME = 1024


def opening_facts(left_out: Iterable[tuple[Source, Fact]]) -> Iterator[tuple[Source, Fact]]:
    """What a span opens with, from the facts before it: for each source that it is not whole, and keyframes.

    Of an engine that itself is not known from its beginning there are none; its own will come with its steps.
    """
    state = RunState()
    cut: dict[Source, None] = {}
    for source, fact in left_out:
        state.apply(source, fact)
        cut[source] = None
    for source in cut:
        yield source, RecordsLost(0)
    for engine in state.engines.values():
        if engine.blocks.is_exact and engine.builder.roster.is_exact:
            for keyframe in _keyframes_of(engine):
                yield engine.source, keyframe


def _keyframes_of(engine: EngineState) -> Iterator[BlocksKeyframe | RequestKeyframe]:
    view = engine.blocks.now()
    for first in range(0, len(view.num_refs), BLOCKS_A_KEYFRAME):
        part = slice(first, first + BLOCKS_A_KEYFRAME)
        yield BlocksKeyframe(view.step, first, view.num_refs[part], view.hashes[part])
    line = engine.builder.roster.line
    for ledger in engine.builder.roster.ledgers.values():
        table = view.tables.get(ledger.request_id, [])
        yield _request_keyframe(ledger, view.step, table, ledger.request_id not in line)


def _request_keyframe(ledger: SequenceLedger, step: int, table: list[int], is_running: bool) -> RequestKeyframe:
    run = ledger.step_runs[-1] if ledger.step_runs and is_running else None
    return RequestKeyframe(
        step=step,
        request_id=ledger.request_id,
        is_running=is_running,
        block_ids=table,
        num_computed_tokens=run.num_computed + run.num_steps * run.num_tokens if run is not None else 0,
        num_prompt_tokens=ledger.submitted.num_prompt_tokens,
        num_output_tokens=ledger.num_output_tokens,
    )
