"""A step's queries in pieces for the attention kernel: neighbours of a prompt, and rows that share blocks."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.attention import PieceForm

Int64Array = npt.NDArray[np.int64]


class Pieces(NamedTuple):
    """queries: int64 (T, 3) of token, position, row. pieces: int64 (P, 3) of first query, how many, and the end of
    the keys that they read together.
    """

    queries: Int64Array
    pieces: Int64Array


class _Sharing(NamedTuple):
    """Decode rows in an order in which those that share blocks are neighbours, and that cut into pieces.

    counts: rows of each piece. ends: of the keys they have in common, 0 for a row alone; both int64.
    """

    order: Int64Array
    counts: Int64Array
    ends: Int64Array


def attention_pieces(batch: AttentionBatch, form: PieceForm) -> Pieces:
    """Neighbouring queries of a row in pieces of the largest size, the rest of a row one by one.

    Rows of one query whose tables begin alike, as after a hit in the prefix cache, make pieces too.
    """
    lengths, ends = np.array(batch.query_lens, np.int64), np.array(batch.seq_lens, np.int64)
    tokens = np.arange(lengths.sum())
    is_decode = batch.num_decodes == len(lengths)
    counts = lengths if is_decode else _chunk_counts(lengths, form.sizes[-1])
    sharing = _sharing(batch, ends, form)
    if sharing is not None:
        tokens[: len(sharing.order)] = sharing.order
        counts = np.concatenate((sharing.counts, counts[batch.num_decodes :]))
    rows = tokens if is_decode else np.repeat(np.arange(len(lengths)), lengths)[tokens]
    positions = tokens + (ends - np.cumsum(lengths))[rows]
    last = np.cumsum(counts)
    piece_ends = positions[last - 1] + 1
    if sharing is not None:
        alone = piece_ends[: len(sharing.ends)]
        piece_ends[: len(sharing.ends)] = np.where(sharing.ends, sharing.ends, alone)
    return Pieces(np.stack((tokens, positions, rows), 1), np.stack((last - counts, counts, piece_ends), 1))


def _chunk_counts(lengths: Int64Array, most: int) -> Int64Array:
    """How many queries each piece has, row after row: as many pieces of `most` as fit, then single ones."""
    num_whole, num_single = np.divmod(lengths, most)
    num_pieces = num_whole + num_single
    rows = np.repeat(np.arange(len(lengths)), num_pieces)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    counts: Int64Array = np.where(number < num_whole[rows], most, 1)
    return counts


def _sharing(batch: AttentionBatch, ends: Int64Array, form: PieceForm) -> _Sharing | None:
    """None where no decode rows share blocks, found out by the first block of each, or too few rows do."""
    num_rows = batch.num_decodes
    if num_rows < 2 or form.sizes[-1] < 2:
        return None
    tables = batch.block_tables[:num_rows].numpy()
    first = np.sort(tables[:, 0])
    if not (first[1:] == first[:-1]).any():
        return None
    # As bytes, whatever order that is: rows with the same beginning become neighbours.
    as_bytes = np.ascontiguousarray(tables).view(np.dtype((np.void, tables.itemsize * tables.shape[1])))
    order = np.argsort(as_bytes[:, 0], kind="stable")
    # Keys that both have, in whole turns of the kernel.
    common = np.minimum(_common_blocks(tables[order]) * form.block_size, _lesser_of_pairs(ends[order]))
    turns = (common // form.keys_at_once).tolist()
    groups = [part for group in _groups(turns, form.sizes[-1]) for part in _parts(group, form.sizes)]
    counts, common_turns = np.array(groups, np.int64).T
    if len(counts) < form.least_pieces or not common_turns.any():
        return None
    return _Sharing(order, counts, common_turns * form.keys_at_once)


def _common_blocks(tables: Int64Array) -> Int64Array:
    """With how many equal blocks each two neighbouring tables begin."""
    differ = tables[1:] != tables[:-1]
    depths: Int64Array = np.where(differ.any(1), differ.argmax(1), tables.shape[1])
    return depths


def _lesser_of_pairs(values: Int64Array) -> Int64Array:
    return np.minimum(values[1:], values[:-1])


def _groups(depths: list[int], most: int) -> list[tuple[int, int]]:
    """Rows and common turns of each group of neighbours, from what each row has in common with the next.

    A row does not join those with which it has much less in common than they, or than it and the row after it.
    """
    groups, count, common = [], 1, 0
    for depth, following in zip(depths, [*depths[1:], 0], strict=True):
        if count < most and depth and 2 * depth >= max(common, following):
            count, common = count + 1, depth if count == 1 else min(common, depth)
        else:
            groups.append((count, common))
            count, common = 1, 0
    return [*groups, (count, common)]


def _parts(group: tuple[int, int], sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The group in pieces of sizes that there are."""
    count, common = group
    parts = []
    while count:
        size = max(size for size in sizes if size <= count)
        parts.append((size, common if size > 1 else 0))
        count -= size
    return parts
