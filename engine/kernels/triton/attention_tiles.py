"""The parts of an attention kernel: which queries and keys a program has, scores, and the softmax as it goes."""

import triton.language as tl

from vllm_obs.engine.kernels.triton.fp8 import decode_e4m3
from vllm_obs.engine.kernels.triton.launch import Number, Pointer, Tile, device_function

LOG2_E = tl.constexpr(1.4426950408889634)


@device_function
def row_of_tile(query_starts: "Pointer", num_rows: "Number", tile: "Number", TILE_QUERIES: tl.constexpr) -> Tile:
    """The row a tile belongs to, by bisection; row r owns the tiles from starts[r] // TILE_QUERIES + r on.

    That gives each row as many tiles as it can need, at most one too many, from sizes the host knows.
    """
    low = tile * 0
    high = low + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        is_reached = tl.load(query_starts + middle) // TILE_QUERIES + middle <= tile
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle)
    return low


@device_function
def queries_of_tile(
    query_starts: "Pointer", num_rows: "Number", tile: "Number", TILE_QUERIES: tl.constexpr
) -> Tile:
    """(row, the row's first token, how many it has, the tile's first among them)."""
    row = row_of_tile(query_starts, num_rows, tile, TILE_QUERIES)
    row_start = tl.load(query_starts + row)
    num_queries = tl.load(query_starts + row + 1) - row_start
    return row, row_start, num_queries, (tile - row_start // TILE_QUERIES - row) * TILE_QUERIES


@device_function
def steps_of_split(
    position: "Number",
    end_key: "Number",
    split: "Number",
    WINDOW: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> Tile:
    """The first of a split's steps over keys, and the one behind its last; `position` is the first query's."""
    first_step = 0
    if WINDOW > 0:
        first_step = tl.maximum(position - WINDOW + 1, 0) // BLOCK_N
    end_step = tl.cdiv(end_key, BLOCK_N)
    share = tl.cdiv(end_step - first_step, NUM_SPLITS)
    begin = first_step + split * share
    return begin, tl.minimum(begin + share, end_step)


@device_function
def lines_of_tile(
    first_query: "Number", num_queries: "Number", kv_head: "Number", GROUP: tl.constexpr, BLOCK_M: tl.constexpr
) -> Tile:
    """(each line's query, its head, whether it is one): lines run over queries, then over the heads of a group."""
    line = tl.arange(0, BLOCK_M)
    query = first_query + line // GROUP
    is_line = (line < BLOCK_M // GROUP * GROUP) & (query < num_queries)
    return query, kv_head * GROUP + line % GROUP, is_line


@device_function
def keys_of_step(
    table: "Pointer",
    end_key: "Number",
    step: "Number",
    kv_head: "Number",
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> Tile:
    """(a step's keys, which of them the row has, where the numbers of each begin in the cache)."""
    key = step * BLOCK_N + tl.arange(0, BLOCK_N)
    is_key = key < end_key
    block = tl.load(table + key // CACHE_BLOCK, mask=is_key, other=0)
    place = block.to(tl.int64) * (2 * NUM_KV_HEADS) + kv_head
    return key, is_key, (place * CACHE_BLOCK + key % CACHE_BLOCK) * HEAD_DIM


@device_function
def cached_tile(
    layer_cache: "Pointer", offsets: "Tile", kept: "Tile", FP8: tl.constexpr, NATIVE_FP8: tl.constexpr
) -> Tile:
    """Keys or values; what lies behind a row's newest token is never read, so no stale NaN gets in."""
    loaded = tl.load(layer_cache + offsets, mask=kept, other=0)
    if not FP8:
        return loaded
    elif NATIVE_FP8:  # noqa: RET505 - Triton takes an early return for one more way out of the whole function
        return loaded.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return decode_e4m3(loaded)


@device_function
def product(left: "Tile", right: "Tile", WIDEN: tl.constexpr) -> Tile:
    """float32 product of two tiles of one type; the interpreter has none of bfloat16."""
    if WIDEN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@device_function
def bent(scores: "Tile", soft_cap: "Number", HAS_SOFT_CAP: tl.constexpr) -> Tile:
    """Scores within ±soft_cap, by a tangent."""
    if HAS_SOFT_CAP:
        scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2_E / soft_cap)) + 1.0))
    return scores


@device_function
def seen(key: "Tile", position: "Tile", WINDOW: tl.constexpr) -> Tile:
    """Whether a query at `position` sees a key."""
    is_seen = key <= position
    if WINDOW > 0:
        is_seen &= key > position - WINDOW
    return is_seen


@device_function
def softmax_step(scores: "Tile", largest: "Tile", total: "Tile") -> Tile:
    """(weights of these scores, factor of all sums so far, largest score and sum of weights from now on).

    Scores are in powers of two; -inf is a key that is not seen, and a line may have seen none yet.
    """
    grown = tl.maximum(largest, tl.max(scores, 1))
    pivot = tl.where(grown == float("-inf"), 0.0, grown)
    weights = tl.exp2(scores - pivot[:, None])
    kept = tl.exp2(largest - pivot)
    return weights, kept, grown, total * kept + tl.sum(weights, 1)


@device_function
def store_attended(
    output: "Pointer",
    place: "Tile",
    sums: "Tile",
    scale: "Number",
    total: "Tile",
    is_line: "Tile",
    HEAD_DIM: tl.constexpr,
) -> None:
    """What a line's head has found, over the sum of its weights."""
    feature = tl.arange(0, sums.shape[1])
    found = sums * (scale / tl.where(is_line, total, 1.0))[:, None]
    kept = is_line[:, None] & (feature < HEAD_DIM)[None, :]
    tl.store(output + place[:, None] * HEAD_DIM + feature[None, :], found.to(output.dtype.element_ty), mask=kept)


@device_function
def store_part(
    partial: "Pointer",
    partial_stats: "Pointer",
    place: "Tile",
    sums: "Tile",
    largest: "Tile",
    total: "Tile",
    is_line: "Tile",
    HEAD_DIM: tl.constexpr,
) -> None:
    """What one split has found, for `split_reduction`."""
    feature = tl.arange(0, sums.shape[1])
    kept = is_line[:, None] & (feature < HEAD_DIM)[None, :]
    tl.store(partial + place[:, None] * HEAD_DIM + feature[None, :], sums, mask=kept)
    tl.store(partial_stats + place * 2, largest, mask=is_line)
    tl.store(partial_stats + place * 2 + 1, total, mask=is_line)
