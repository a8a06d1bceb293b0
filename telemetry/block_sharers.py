"""BlockSharers: who holds the same KV blocks as whom, worked out once for many who hold the same."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, reduce
from itertools import chain, islice, takewhile
from operator import or_
from typing import NamedTuple

MAX_SHARERS = 8


class Shared(NamedTuple):
    """What a sequence shares: how many of its blocks, with how many others, and the first of those."""

    num_blocks: int
    num_sharers: int
    sharers: list[str]


NOTHING = Shared(0, 0, [])


class BlockSharers:
    """What the sequences `of` share; `tables` are all there are, `num_refs` the references of each block.

    Those who hold the same shared blocks (a common prefix) are one group: a group's neighbours are found once.
    """

    def __init__(self, tables: Mapping[str, list[int]], num_refs: list[int], of: Collection[str]) -> None:
        held: set[int] = set().union(*(tables[request_id] for request_id in of))
        shared = frozenset(block_id for block_id in held if num_refs[block_id] > 1)
        self._groups: dict[frozenset[int], list[str]] = {}
        self._group_of: dict[str, frozenset[int]] = {}
        # Most often one prefix is what is shared: it is compared as a whole, which is ten times as fast.
        prefix = list(takewhile(shared.__contains__, tables[next(iter(of))])) if shared else []
        prefix_group = frozenset(prefix)
        for request_id, table in tables.items() if shared else ():
            if table[: len(prefix)] == prefix:
                rest = shared.intersection(table[len(prefix) :])
                group = prefix_group | rest if rest else prefix_group
            else:
                group = shared.intersection(table)
            if group:
                self._groups.setdefault(group, []).append(request_id)
                self._group_of[request_id] = group
        self._neighbours: dict[frozenset[int], list[list[str]]] = {}

    def of(self, request_id: str) -> Shared:
        """What one of those asked for shares, in order of the tables."""
        group = self._group_of.get(request_id)
        if group is None:
            return NOTHING
        groups = self._neighbours.get(group)
        if groups is None:
            groups = self._neighbours[group] = list(self._neighbours_of(group))
        names = (name for name in chain.from_iterable(groups) if name != request_id)
        return Shared(len(group), sum(map(len, groups)) - 1, list(islice(names, MAX_SHARERS)))

    def _neighbours_of(self, group: frozenset[int]) -> Iterator[list[str]]:
        """The groups that hold any of its blocks, itself included."""
        masks = self._masks
        mask = reduce(or_, (masks[block_id] for block_id in group))
        return (names for place, names in enumerate(self._groups.values()) if mask >> place & 1)

    @cached_property
    def _masks(self) -> dict[int, int]:
        """Block → the groups that hold it, a bit each."""
        masks: defaultdict[int, int] = defaultdict(int)
        for place, group in enumerate(self._groups):
            for block_id in group:
                masks[block_id] |= 1 << place
        return masks
