"""BlockFeed: one engine's KV blocks as they change, encoded once for all who listen."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from vllm_obs.telemetry.block_picture import BlockPicture, draw
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_events import EventHub, event_bytes
from vllm_obs.telemetry.inspect_reply import InspectError

MAX_QUEUED = 64
REDRAW_SECONDS = 2.0
"""Where records are lost again and again, the whole map is drawn no more often than that."""
MAX_CHANGED_SHARE = 0.25
"""If more of the blocks have changed, the whole map is shorter than what changed."""

_logger = logging.getLogger(__name__)


class Glance(NamedTuple):
    """What is told of all blocks together."""

    is_exact: bool
    levels: dict[str, int]


class BlockFeed:
    """Blocks of the engine that lives under a label, also of the next one after it died. Costs nothing unheard.

    Events: `map` (all blocks, in place of whatever was told before) and `changes`. Of an engine that is gone the
    map is as its last step left it.
    """

    def __init__(self) -> None:
        self.hub = EventHub(MAX_QUEUED)
        self._engine: EngineState | None = None
        self._picture: BlockPicture | None = None
        self._num_changes = 0
        self._was_gone = False
        self._told = Glance(False, {})
        self._drawn_at = 0.0
        self._drawing: asyncio.Task[None] | None = None

    def open(self, engine: EngineState) -> AsyncIterator[bytes]:
        """What a client gets first; `tell` follows from this moment. Where nothing is drawn yet the map does."""
        if self._picture is not None:
            self.tell(engine)
        if self._picture is None or self._engine is None:
            self._begin_drawing(engine)
            return _in_turn([])
        content = map_document(self._engine, self._picture, self._told)
        return _in_turn([event_bytes("map", self._picture.step, content)])

    def tell(self, engine: EngineState) -> None:
        """Send what has changed since; `engine` is the one that has the label now."""
        picture = self._picture
        if self._drawing is not None:
            return
        if picture is None or engine is not self._engine or engine.is_gone != self._was_gone:
            self._begin_drawing(engine)
            return
        if engine.is_gone:
            return
        before, self._told = self._told, glance(engine)
        changes = engine.blocks.changes_since(self._num_changes)
        if changes is None or picture.num_blocks != engine.blocks.num_blocks:
            if self._told != before:
                self._send_changes([], {})
            if time.monotonic() >= self._drawn_at + REDRAW_SECONDS:
                self._begin_drawing(engine)
            return
        self._num_changes += len(changes)
        block_ids, names = picture.apply(changes, engine.blocks)
        if len(block_ids) > MAX_CHANGED_SHARE * picture.num_blocks:
            self.hub.publish("map", picture.step, map_document(engine, picture, self._told))
        elif block_ids or self._told != before:
            self._send_changes(block_ids, names)

    def tell_state(self, word: str) -> None:
        """Send how the engine is, so that listeners know that they are told of whatever happens."""
        self.hub.publish("state", self._picture.step if self._picture is not None else 0, {"state": word})

    def rest(self) -> None:
        """Nobody listens."""
        self._picture = self._engine = None
        self.close()

    def close(self) -> None:
        """Stop what is being drawn."""
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None

    def _begin_drawing(self, engine: EngineState) -> None:
        if self._drawing is None:
            self._drawing = asyncio.create_task(self._draw(engine), name="block picture")

    async def _draw(self, engine: EngineState) -> None:
        """Draw the map of a moment; what changes meanwhile is told afterwards."""
        try:
            copy, was_gone = engine.blocks.copied(), engine.is_gone
            told = glance(engine)
            if was_gone:
                # What its last step left, if that is still known.
                picture = await draw(copy, max(engine.blocks.first_step, copy.view.step - 1))
                told = Glance(told.is_exact, picture.counts())
            else:
                picture = await draw(copy)
            self._engine, self._picture, self._was_gone, self._told = engine, picture, was_gone, told
            self._num_changes, self._drawn_at = copy.num_changes, time.monotonic()
            self.hub.publish("map", picture.step, map_document(engine, picture, told))
        except Exception:  # telemetry may fail; whoever listened may come again
            _logger.exception("the blocks of engine %s cannot be drawn", engine.label)
            self.hub.close()
        self._drawing = None

    def _send_changes(self, block_ids: list[int], names: dict[int, str]) -> None:
        picture = self._picture
        assert picture is not None
        states, refs, owners = picture.states, picture.refs, picture.owners
        content = {
            "step": picture.step,
            "ids": block_ids,
            "states": [states[block_id] for block_id in block_ids],
            "refs": [refs[block_id] for block_id in block_ids],
            "owners": [owners[block_id] for block_id in block_ids],
            "names": names,
            **self._told._asdict(),
        }
        self.hub.publish("changes", picture.step, content)


def glance(engine: EngineState) -> Glance:
    """The levels that all of the inspector shows, and whether the map behind them is exact."""
    return Glance(engine.blocks.is_exact, engine.block_levels._asdict())


def map_document(engine: EngineState, picture: BlockPicture, told: Glance) -> dict[str, Any]:
    """All blocks of an engine in a few strings of base64, and which steps they can be had of."""
    return {
        "engine": engine.label,
        "pid": engine.source.pid,
        "first_step": engine.blocks.first_step,
        "last_step": engine.blocks.step,
        **picture.document(),
        **told._asdict(),
    }


async def map_at(engine: EngineState, step: int | None) -> dict[str, Any]:
    """The map as of a past step, or now. InspectError (404) where that step is no longer, or not yet, known."""
    blocks = engine.blocks
    last = max(blocks.step, engine.steps.last.step if engine.steps.last is not None else 0)
    if step is not None and step > last:
        raise InspectError(f"the engine has run {last} steps; {step} is not one of them", 404)
    if step is None or step >= blocks.step:
        told = glance(engine)
        return map_document(engine, await draw(blocks.copied()), told)
    if step < blocks.first_step:
        raise InspectError(f"blocks are kept from step {blocks.first_step} on; {step} is before that", 404)
    is_exact = blocks.is_exact
    picture = await draw(blocks.copied(), step)
    return map_document(engine, picture, Glance(is_exact, picture.counts()))


async def _in_turn(events: list[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event
