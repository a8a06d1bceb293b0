"""The inspector's view of KV blocks: by state and owner, or one request's table, now or at a past step."""

from typing import Any

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.block_view import BlockView
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState

STATES = ("free", "cached", "active")
MAX_OWNERS_SHOWN = 8
"""Of a block that more sequences share only so many are named; `num_refs` counts them all."""


def block_list(state: RunState, engine: str, step: int | None) -> dict[str, Any]:
    """All blocks of an engine in columns; `owners` are indices into `requests`. InspectError (404) if unknown."""
    found = engine_of(state, engine)
    blocks = found.blocks
    view = view_at(blocks, step)
    holders = view.owners()
    numbers = {request_id: number for number, request_id in enumerate(view.tables)}
    num_blocks = len(view.num_refs)
    states = [view.state_of(block_id) for block_id in range(num_blocks)]
    return {
        "engine": engine,
        "step": view.step,
        "first_step": blocks.first_step,
        "is_exact": blocks.is_exact,
        "num_blocks": num_blocks,
        "levels": _levels(found, states, step),
        "states": states,
        "num_refs": list(view.num_refs),
        "hashes": [block_hash.hex() for block_hash in view.hashes],
        "owners": [
            [numbers[name] for name in holders.get(block_id, ())[:MAX_OWNERS_SHOWN]]
            for block_id in range(num_blocks)
        ],
        "requests": list(view.tables),
    }


def request_blocks(state: RunState, name: str, step: int | None) -> dict[str, Any]:
    """The block tables of the sequences known by an id or label, after `step` or now (of ended ones: the last).

    InspectError (404) where there is no such sequence.
    """
    ledgers = state.find(name)
    if not ledgers:
        raise InspectError(f"no request of the last minutes has the id or label {name[:64]!r}", 404)
    return {"name": name, "step": step, "sequences": [_table_of(state, ledger, step) for ledger in ledgers]}


def _table_of(state: RunState, ledger: SequenceLedger, step: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "request_id": ledger.request_id,
        "engine": ledger.engine,
        "block_ids": None,
        "hit": None,
    }
    if not ledger.engine:
        return row
    blocks = engine_of(state, ledger.engine).blocks
    request_id = ledger.request_id
    block_ids = blocks.table(request_id) if step is None else blocks.table_at(request_id, step)
    hit = blocks.hit(request_id)
    if hit is not None:
        hashes = [block_hash.hex() for block_hash in hit.hashes]
        row["hit"] = {"step": hit.step, "block_ids": hit.block_ids, "hashes": hashes}
    return row | {"block_ids": block_ids, "is_exact": blocks.is_exact}


def _levels(engine: EngineState, states: list[str], step: int | None) -> dict[str, int]:
    """Now they are the ones that all of the inspector and the metrics show."""
    if step is None:
        return engine.block_levels._asdict()
    return {f"num_{word}": states.count(word) for word in STATES}


def view_at(blocks: BlockMap, step: int | None) -> BlockView:
    """The blocks as they are, or as they were after a step. InspectError (404) where that is too long ago.

    As they are they are not copied: look at them at once. Those of a past step are copied, and what changed since
    is taken back: tens of ms where there are 100,000 blocks and as many changes.
    """
    if step is None or step >= blocks.step:
        return blocks.seen()
    view = blocks.at(step)
    if view is None:
        raise InspectError(f"blocks are kept from step {blocks.first_step} on; {step} is before that", 404)
    return view
