"""The inspector's view of a single KV block, and of one sequence's table block by block."""

from typing import Any

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.block_undo import BlockBefore
from vllm_obs.telemetry.block_view import BlockView
from vllm_obs.telemetry.inspect_blocks import MAX_OWNERS_SHOWN, view_at
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ledger_tokens import tokens_held
from vllm_obs.telemetry.prefix_words import prefix_document
from vllm_obs.telemetry.run_state import RunState

MAX_SEQUENCES = 16
MAX_OTHERS = 3
"""So many of those that share a block of a table are named."""


def one_block(state: RunState, label: str, block_id: int, step: int | None) -> dict[str, Any]:
    """A block now or after a kept step: who holds it and as which of their blocks, and who made its content.

    InspectError (404) if there is no such block or that step is not kept.
    """
    engine = engine_of(state, label)
    view = view_at(engine.blocks, step)
    if block_id >= len(view.num_refs):
        raise InspectError(f"block {block_id} is not one of the {len(view.num_refs)} of engine {label}", 404)
    block_hash = view.hashes[block_id]
    origin = engine.prefixes.origin(block_hash) if block_hash else None
    holders = [
        {"request_id": request_id, "place": table.index(block_id)}
        for request_id, table in view.tables.items()
        if block_id in table
    ]
    return {
        "engine": label,
        "block_id": block_id,
        "step": view.step,
        "state": view.state_of(block_id),
        "num_refs": view.num_refs[block_id],
        "hash": block_hash.hex(),
        "num_holders": len(holders),
        "holders": holders[:MAX_OWNERS_SHOWN],
        "changed_step": _changed_step(engine.blocks, block_id, step),
        "made_by": origin.request_id if origin is not None else "",
        "made_step": origin.step if origin is not None else None,
    }


def _changed_step(blocks: BlockMap, block_id: int, step: int | None) -> int | None:
    """The last step (up to a past one) that is known to have changed the block."""
    if step is None or step >= blocks.step:
        return blocks.changed_step(block_id)
    for change in blocks.newest_changes():
        if isinstance(change, BlockBefore) and change.block_id == block_id and change.step <= step:
            return change.step
    return None


def table_document(view: BlockView, request_id: str, block_ids: list[int]) -> dict[str, Any]:
    """Columns beside a table's `block_ids`: references, hashes, and others that hold the same block now.

    `others` are indices into `sharers`. If `is_held` is False the sequence has ended, and they are others' now.
    """
    num_refs, hashes = view.num_refs, view.hashes
    shared = {block_id for block_id in block_ids if num_refs[block_id] > 1}
    sharers: dict[str, int] = {}
    others: dict[int, list[int]] = {block_id: [] for block_id in shared}
    if shared:
        for name, table in view.tables.items():
            for block_id in shared.intersection(table) if name != request_id else ():
                others[block_id].append(sharers.setdefault(name, len(sharers)))
    return {
        "num_refs": [num_refs[block_id] for block_id in block_ids],
        "hashes": [hashes[block_id].hex() for block_id in block_ids],
        "others": [sorted(others.get(block_id, ()))[:MAX_OTHERS] for block_id in block_ids],
        "sharers": list(sharers),
        "is_held": view.tables.get(request_id) is not None,
    }


def request_cache(state: RunState, name: str, step: int | None) -> dict[str, Any]:
    """Tables of the sequences known by an id or label, newest first, with what each found in the prefix cache.

    After `step` or now (of ended ones: the last). InspectError (404) where there is no such sequence.
    """
    ledgers = sorted(state.find(name), key=lambda ledger: ledger.submitted.received_at, reverse=True)
    if not ledgers:
        raise InspectError(f"no request of the last minutes has the id or label {name[:64]!r}", 404)
    rows = [_cache_of(state, ledger, step) for ledger in ledgers[:MAX_SEQUENCES]]
    return {"name": name, "step": step, "num_sequences": len(ledgers), "sequences": rows}


def _cache_of(state: RunState, ledger: SequenceLedger, step: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "request_id": ledger.request_id,
        "engine": ledger.engine,
        "state": ledger.state,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
        "num_tokens": tokens_held(ledger, step),
        "block_ids": None,
    }
    if not ledger.engine:
        return row | {"prefix": None}
    engine = engine_of(state, ledger.engine)
    blocks, request_id = engine.blocks, ledger.request_id
    block_ids = blocks.table(request_id) if step is None else blocks.table_at(request_id, step)
    row |= {"block_ids": block_ids, "prefix": prefix_document(engine, ledger)}
    if block_ids is None or (step is not None and step < blocks.first_step):
        return row
    return row | table_document(view_at(blocks, step), request_id, block_ids)
