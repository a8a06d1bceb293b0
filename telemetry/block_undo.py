"""BlockUndo: what a step changed in the block map, in the form that takes it back."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

MAX_UNDO_STEPS = 4096
MAX_UNDO_CHANGES = 1 << 17


class TableBefore(NamedTuple):
    """A sequence had this block table before `step` changed it; None where it had none."""

    step: int
    request_id: str
    block_ids: tuple[int, ...] | None


class TableGrown(NamedTuple):
    """`step` appended so many blocks to a sequence's table."""

    step: int
    request_id: str
    num_blocks: int


class BlockBefore(NamedTuple):
    """A block had these references and this hash (empty: none) before `step` changed it."""

    step: int
    block_id: int
    num_refs: int
    block_hash: bytes


BlockChange = TableBefore | TableGrown | BlockBefore


class BlockUndo:
    """The changes of the last steps, newest last: of 4096 steps, and no more than 131,072."""

    def __init__(self, max_steps: int = MAX_UNDO_STEPS, max_changes: int = MAX_UNDO_CHANGES) -> None:
        self._max_steps = max_steps
        self._max_changes = max_changes
        self._changes: deque[BlockChange] = deque()
        self.first_step = 0
        """The oldest step whose outcome can be restored."""
        self.num_added = 0
        """How many changes there ever were."""

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: BlockChange) -> None:
        """Keep a change; the oldest steps go when there are too many."""
        changes = self._changes
        changes.append(change)
        self.num_added += 1
        if changes[0].step <= change.step - self._max_steps or len(changes) > self._max_changes:
            self._forget(changes[0].step)

    def begin(self, step: int) -> None:
        """Nothing before the outcome of this step is known."""
        self._changes.clear()
        self.first_step = step

    def after(self, step: int) -> Iterator[BlockChange]:
        """The changes that later steps made, newest first."""
        for change in reversed(self._changes):
            if change.step <= step:
                return
            yield change

    def since(self, num_added: int) -> list[BlockChange] | None:
        """The changes since there had been so many, oldest first; None if they are not all kept."""
        num_new = self.num_added - num_added
        if num_new > len(self._changes):
            return None
        return list(islice(reversed(self._changes), num_new))[::-1]

    def all(self) -> list[BlockChange]:
        """What is kept, oldest first."""
        return list(self._changes)

    def _forget(self, step: int) -> None:
        while self._changes and self._changes[0].step <= step:
            self._changes.popleft()
        self.first_step = step
