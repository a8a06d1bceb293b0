"""Which steps run as a captured graph, at which batch size, and why the others do not."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

from vllm_obs.telemetry.records import EagerReason


class GraphUse(NamedTuple):
    """How one step is run: as the graph of `bucket` rows, `num_padded` of them for nothing, or eagerly (0, 0)."""

    bucket: int
    num_padded: int
    reason: EagerReason

    @property
    def is_graph(self) -> bool:
        """Whether a graph is replayed."""
        return self.bucket > 0


def bucket_sizes(max_num_rows: int, asked: Sequence[int] | None = None) -> list[int]:
    """Batch sizes worth a graph, ascending: 1, 2, 4, then steps of 8, of 16 from 128 and of 32 from 256 on.

    Padding is under 8 rows, or an eighth of the batch, but for the smallest; `max_num_rows` itself is one of them.
    Sizes that were `asked` for are taken instead, those that a step can have.
    """
    if asked is not None:
        return sorted({size for size in asked if size <= max_num_rows})
    sizes = [1, 2, 4, *range(8, 128, 8), *range(128, 256, 16), *range(256, max_num_rows + 1, 32)]
    return sorted({size for size in sizes if size < max_num_rows} | {max_num_rows})


def choose_graph(num_rows: int, max_query_len: int, captured: Collection[int]) -> GraphUse:
    """The smallest captured graph with room for a step of that many rows, if it only decodes."""
    if not captured:
        return eagerly("capture_failed")
    if max_query_len > 1:
        return eagerly("prompt_tokens")
    sizes = sorted(captured)
    place = bisect_left(sizes, num_rows)
    if place == len(sizes):
        return eagerly("batch_size")
    return GraphUse(sizes[place], sizes[place] - num_rows, "")


def eagerly(reason: EagerReason) -> GraphUse:
    """No graph, for that reason."""
    return GraphUse(0, 0, reason)
