"""What one engine's KV blocks come to: levels, sharing, room in half-filled blocks, and who holds most of them."""

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vllm_obs.telemetry.block_sharers import BlockSharers, Shared
from vllm_obs.telemetry.block_view import BlockView
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_blocks import STATES, view_at
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ledger_tokens import tokens_held
from vllm_obs.telemetry.run_state import RunState

MAX_HOLDERS = 100
NS = 1e9


@dataclass(frozen=True)
class _Moment:
    """What is looked at: the blocks after a step, or now (`step` is None)."""

    state: RunState
    engine: EngineState
    view: BlockView
    step: int | None
    now: int

    @property
    def block_size(self) -> int:
        """Tokens of a block, 0 as long as the engine has not said it."""
        return self.engine.described.block_size if self.engine.described is not None else 0

    @cached_property
    def num_used(self) -> int:
        """Blocks that anybody holds."""
        return len(self.view.num_refs) - self.view.num_refs.count(0)

    @cached_property
    def num_shared(self) -> int:
        """Blocks that more than one hold."""
        return self.num_used - self.view.num_refs.count(1)

    def ledger(self, request_id: str) -> SequenceLedger | None:
        """A sequence's, of one that has ended as well."""
        return self.state.book.known(request_id)


def block_summary(state: RunState, label: str, step: int | None, now: int) -> dict[str, Any]:
    """The sums, as they are at `now` or as they were after a kept step. InspectError (404) otherwise.

    Of 100,000 blocks they cost a few ms now, and tens of ms after a past step, which is made from copies first.
    """
    engine = engine_of(state, label)
    moment = _Moment(state, engine, view_at(engine.blocks, step), step, _seen_at(engine, step, now))
    view = moment.view
    return {
        "engine": label,
        "pid": engine.source.pid,
        "step": view.step,
        "first_step": engine.blocks.first_step,
        "last_step": engine.blocks.step,
        "is_exact": engine.blocks.is_exact,
        "num_blocks": len(view.num_refs),
        "block_size": moment.block_size,
        "levels": _levels(moment),
        "sharing": _sharing(moment),
        "fragmentation": _fragmentation(moment),
        "num_holders": len(view.tables),
        "holders": _holders(moment),
    }


def _seen_at(engine: EngineState, step: int | None, now: int) -> int:
    """The moment that ages are of."""
    facts = engine.steps.get(step) if step is not None else None
    return facts.planned.schedule_ended_at if facts is not None else now


def _levels(moment: _Moment) -> dict[str, int]:
    """Now they are the ones that all of the inspector and the metrics show."""
    if moment.step is None:
        return moment.engine.block_levels._asdict()
    view = moment.view
    states = [view.state_of(block_id) for block_id in range(len(view.num_refs))]
    return {f"num_{word}": states.count(word) for word in STATES}


def _sharing(moment: _Moment) -> dict[str, int]:
    """`num_saved_blocks` would be needed more if nobody shared."""
    num_refs, num_used, num_shared = moment.view.num_refs, moment.num_used, moment.num_shared
    return {
        "num_shared_blocks": num_shared,
        "num_saved_blocks": sum(num_refs) - num_used if num_shared else 0,
        "max_refs": max(set(num_refs)) if num_shared else min(num_used, 1),
    }


def _fragmentation(moment: _Moment) -> dict[str, Any]:
    """Room in the last blocks of the tables that no token fills, of all the room that is held."""
    size, num_empty, num_unknown = moment.block_size, 0, 0
    for request_id, table in moment.view.tables.items():
        empty = _num_empty(moment, request_id, len(table))
        if empty is None:
            num_unknown += 1
        else:
            num_empty += empty
    num_slots = size * moment.num_used
    return {
        "num_slots": num_slots,
        "num_empty_slots": num_empty,
        "share": num_empty / num_slots if num_slots else None,
        "num_unknown_requests": num_unknown,
    }


def _num_empty(moment: _Moment, request_id: str, num_blocks: int) -> int | None:
    ledger = moment.ledger(request_id)
    num_tokens = tokens_held(ledger, moment.step) if ledger is not None else None
    return None if num_tokens is None else max(0, num_blocks * moment.block_size - num_tokens)


def _holders(moment: _Moment) -> list[dict[str, Any]]:
    """Those who hold most, the most first."""
    view = moment.view
    top = heapq.nlargest(MAX_HOLDERS, view.tables.items(), key=lambda item: len(item[1]))
    asked = [request_id for request_id, _ in top] if moment.num_shared else []
    sharers = BlockSharers(view.tables, view.num_refs, asked)
    return [_holder(moment, request_id, len(table), sharers.of(request_id)) for request_id, table in top]


def _holder(moment: _Moment, request_id: str, num_held: int, shared: Shared) -> dict[str, Any]:
    ledger, num_blocks = moment.ledger(request_id), len(moment.view.num_refs)
    taken_at = ledger.taken_at if ledger is not None else 0
    return {
        "request_id": request_id,
        "num_blocks": num_held,
        "share": num_held / num_blocks if num_blocks else 0.0,
        "num_shared_blocks": shared.num_blocks,
        "num_sharers": shared.num_sharers,
        "sharers": shared.sharers,
        "num_tokens": tokens_held(ledger, moment.step) if ledger is not None else None,
        "num_empty_slots": _num_empty(moment, request_id, num_held),
        "age_seconds": max(0, moment.now - taken_at) / NS if taken_at else None,
    }
