"""BlockPicture: all KV blocks in four flat arrays, with an owner each, kept up to date change by change."""

import asyncio
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.block_undo import BlockBefore, BlockChange, TableBefore, TableGrown
from vllm_obs.telemetry.block_view import BlockCopy, BlockView

FREE, CACHED, ACTIVE = 0, 1, 2
MAX_SHOWN_REFS = 255
AT_ONCE = 1 << 14
"""So many blocks or changes are worked off in one go: two or three milliseconds."""

T = TypeVar("T")


class BlockPicture:
    """The blocks as they were after `step`.

    `states` and `refs` are a byte a block (references above 255 are shown as 255), `owners` and `changed` a 32-bit
    number: who holds the block (0: nobody; of several the one whose table is oldest) and the last step known to
    have changed it (0: none). `names` are the holders' request ids; a number is never given twice.
    """

    def __init__(self, num_blocks: int) -> None:
        self.step = 0
        self.states = bytearray(num_blocks)
        self.refs = bytearray(num_blocks)
        self.owners = _zeros(num_blocks)
        self.changed = _zeros(num_blocks)
        self.names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._others: dict[int, dict[int, None]] = {}
        """Block → its holders behind the owner, in order of their numbers."""
        self._next = 1

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.states)

    def document(self) -> dict[str, Any]:
        """The arrays in base64, numbers little-endian."""
        return {
            "step": self.step,
            "num_blocks": self.num_blocks,
            "states": b64encode(self.states).decode(),
            "refs": b64encode(self.refs).decode(),
            "owners": b64encode(_little_endian(self.owners)).decode(),
            "changed_step": b64encode(_little_endian(self.changed)).decode(),
            "names": self.names,
        }

    def counts(self) -> dict[str, int]:
        """How many blocks are in each state."""
        words = {"num_active": ACTIVE, "num_cached": CACHED, "num_free": FREE}
        return {word: self.states.count(state) for word, state in words.items()}

    def apply(self, changes: Iterable[BlockChange], blocks: BlockMap) -> tuple[list[int], dict[int, str]]:
        """Catch up with a map that has made these changes since (oldest first).

        The blocks that were touched, and the names of new holders.
        """
        listed = list(changes)
        touched = {change.block_id for change in listed if isinstance(change, BlockBefore)}
        grown: dict[str, None] = {}
        replaced: dict[str, bool] = {}
        for change in [change for change in listed if not isinstance(change, BlockBefore)]:
            if isinstance(change, TableGrown):
                grown[change.request_id] = None
            elif isinstance(change, TableBefore):
                is_new = change.block_ids is None
                if is_new:
                    # Tables are numbered in the order in which they began.
                    replaced.pop(change.request_id, None)
                replaced[change.request_id] = is_new or replaced.get(change.request_id, False)
        new_names = self._replace(replaced, blocks, touched)
        for request_id in grown.keys() - replaced.keys():
            self._grow(request_id, blocks.held_by(request_id))
        self.step = blocks.step
        block_ids = sorted(touched)
        self._look(block_ids, blocks)
        return block_ids, new_names

    def begin_table(self, request_id: str, block_ids: Sequence[int]) -> int:
        """A sequence holds these blocks, after all that are known; its number."""
        number, self._next = self._next, self._next + 1
        self.names[number] = request_id
        self._numbers[request_id] = number
        self._tables[request_id] = []
        self._grow(request_id, block_ids)
        return number

    def _replace(self, replaced: dict[str, bool], blocks: BlockMap, touched: set[int]) -> dict[int, str]:
        """Read these tables anew; of those that are True as ones that began after all others."""
        for request_id in replaced:
            touched.update(self._drop(request_id))
        new_names: dict[int, str] = {}
        for request_id, is_new in replaced.items():
            block_ids = blocks.held_by(request_id)
            touched.update(block_ids)
            if not block_ids or is_new:
                self.names.pop(self._numbers.pop(request_id, 0), None)
            if block_ids and request_id not in self._numbers:
                new_names[self.begin_table(request_id, block_ids)] = request_id
            elif block_ids:
                self._tables[request_id] = []
                self._grow(request_id, block_ids)
        return new_names

    def _drop(self, request_id: str) -> list[int]:
        block_ids = self._tables.pop(request_id, [])
        number = self._numbers.get(request_id, 0)
        owners, others = self.owners, self._others
        for block_id in block_ids:
            behind = others.get(block_id)
            if behind is None:
                owners[block_id] = 0
                continue
            if owners[block_id] == number:
                owners[block_id] = next(iter(behind))
                del behind[owners[block_id]]
            else:
                behind.pop(number, None)
            if not behind:
                del others[block_id]
        return block_ids

    def _grow(self, request_id: str, block_ids: Sequence[int]) -> None:
        table, number, owners = self._tables[request_id], self._numbers[request_id], self.owners
        others, is_newest = self._others, number == self._next - 1
        new_ids = block_ids[len(table) :]
        table += new_ids
        for block_id in new_ids:
            owner = owners[block_id]
            if not owner:
                owners[block_id] = number
            elif not is_newest:
                self._insert(block_id, number)
            elif owner != number:
                behind = others.get(block_id)
                if behind is None:
                    behind = others[block_id] = {}
                behind[number] = None

    def _insert(self, block_id: int, number: int) -> None:
        """Another holder of a block, who need not be the last in order."""
        holders = sorted({self.owners[block_id], number, *self._others.get(block_id, ())})
        self.owners[block_id] = holders[0]
        if len(holders) > 1:
            self._others[block_id] = dict.fromkeys(holders[1:])

    def _look(self, block_ids: list[int], blocks: BlockMap) -> None:
        states, refs, changed, step = self.states, self.refs, self.changed, self.step
        for block_id, num_refs, block_hash in zip(block_ids, *blocks.look(block_ids), strict=True):
            states[block_id] = ACTIVE if num_refs else CACHED if block_hash else FREE
            refs[block_id] = num_refs if num_refs < MAX_SHOWN_REFS else MAX_SHOWN_REFS
            changed[block_id] = step


async def draw(copy: BlockCopy, step: int | None = None) -> BlockPicture:
    """The picture of blocks as they were copied, or after an earlier step that is known; others get their turn."""
    view = copy.view
    if step is not None:
        await _go_back(view, copy.changes, step)
    picture = BlockPicture(len(view.num_refs))
    picture.step = view.step
    for begin in range(0, picture.num_blocks, AT_ONCE):
        _draw_blocks(picture, view, slice(begin, begin + AT_ONCE))
        await asyncio.sleep(0)
    num_drawn = 0
    for request_id, block_ids in view.tables.items():
        picture.begin_table(request_id, block_ids)
        num_drawn += len(block_ids)
        if num_drawn >= AT_ONCE:
            num_drawn = 0
            await asyncio.sleep(0)
    changed = picture.changed
    for piece in _pieces(copy.changes):
        for change in piece:
            if isinstance(change, BlockBefore) and change.step <= view.step:
                changed[change.block_id] = change.step
        await asyncio.sleep(0)
    return picture


async def _go_back(view: BlockView, changes: list[BlockChange], step: int) -> None:
    for piece in _pieces(reversed(changes)):
        for change in piece:
            if change.step <= step:
                break
            view.take_back(change)
        await asyncio.sleep(0)
    view.step = min(step, view.step)


def _draw_blocks(picture: BlockPicture, view: BlockView, part: slice) -> None:
    refs, hashes = view.num_refs[part], view.hashes[part]
    picture.states[part] = bytes(
        [ACTIVE if num else CACHED if block_hash else FREE for num, block_hash in zip(refs, hashes, strict=True)]
    )
    picture.refs[part] = bytes([min(num, MAX_SHOWN_REFS) for num in refs])


def _pieces(changes: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(changes)
    while piece := list(islice(remaining, AT_ONCE)):
        yield piece


def _zeros(num_blocks: int) -> "array[int]":
    zeros = array("I", bytes(4 * num_blocks))
    assert zeros.itemsize == 4
    return zeros


def _little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
