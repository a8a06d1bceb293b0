"""LaunchWork: what a launch must move and compute at least, from the shapes it is given and its step's rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Arguments = Mapping[str, Any]
"""Of a launch, by the names of the kernel's parameters: tensors and numbers, then constants."""


class StepRows(NamedTuple):
    """Tokens of each row in a step, and in the cache after it."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]

    def num_keys(self, window: int) -> int:
        """Keys that some query of a row sees, over all rows; a window of 0 is none."""
        return sum(
            min(seq, window + query - 1) if window else seq
            for query, seq in zip(self.query_lens, self.seq_lens, strict=True)
        )

    def num_pairs(self, window: int) -> int:
        """Queries times the keys that each sees, over all rows."""
        return sum(_pairs(query, seq, window) for query, seq in zip(self.query_lens, self.seq_lens, strict=True))


NO_ROWS = StepRows((), ())


class LaunchWork(NamedTuple):
    """Bytes are read and written at least, each number once; operations are those of products.

    Of attention `key_bytes` come for each key and `pair_flops` for each query and key it sees, within `window`.
    """

    kernel: str
    num_bytes: int
    key_bytes: int = 0
    pair_flops: int = 0
    window: int = 0

    def bytes_of(self, rows: StepRows) -> int:
        """All bytes, in a step of these rows."""
        return self.num_bytes + (self.key_bytes * rows.num_keys(self.window) if self.key_bytes else 0)

    def flops_of(self, rows: StepRows) -> int:
        """All operations, in a step of these rows."""
        return self.pair_flops * rows.num_pairs(self.window) if self.pair_flops else 0


def work_of(kernel: str, arguments: Arguments) -> LaunchWork:
    """Of a launch of the kernel with that name."""
    return _WORKS[kernel](kernel, arguments)


def _pairs(num_queries: int, seq_len: int, window: int) -> int:
    """A query at position p sees p + 1 keys, or the window's."""
    first = seq_len - num_queries + 1
    num_narrow = num_queries if not window else max(0, min(seq_len, window) - first + 1)
    return num_narrow * (2 * first + num_narrow - 1) // 2 + (num_queries - num_narrow) * window


def _attention(kernel: str, given: Arguments) -> LaunchWork:
    queries, cache = given["queries"], given["layer_cache"]
    num_heads, num_kv_heads, head_dim = (given[name] for name in ("NUM_HEADS", "NUM_KV_HEADS", "HEAD_DIM"))
    is_split = given["NUM_SPLITS"] > 1
    made = _bytes(given["partial"]) + _bytes(given["partial_stats"]) if is_split else _bytes(given["output"])
    return LaunchWork(
        kernel,
        _bytes(queries) + made,
        key_bytes=2 * num_kv_heads * head_dim * cache.dtype.itemsize,
        pair_flops=4 * num_heads * head_dim,
        window=given["WINDOW"],
    )


def _split_reduction(kernel: str, given: Arguments) -> LaunchWork:
    return LaunchWork(kernel, sum(_bytes(given[name]) for name in ("partial", "partial_stats", "output")))


def _kv_write(kernel: str, given: Arguments) -> LaunchWork:
    keys, cache = given["keys"], given["layer_cache"]
    return LaunchWork(kernel, 2 * keys.numel() * (keys.dtype.itemsize + cache.dtype.itemsize))


def _qkv(kernel: str, given: Arguments) -> LaunchWork:
    qkv, queries, cache = given["qkv"], given["queries"], given["layer_cache"]
    num_cached = qkv.numel() - queries.numel()
    rotated = 4 * len(qkv) * given["HEAD_DIM"]
    return LaunchWork(kernel, _bytes(qkv) + _bytes(queries) + num_cached * cache.dtype.itemsize + rotated)


def _rms_norm(kernel: str, given: Arguments) -> LaunchWork:
    residual, output, weight = given["residual"], given["output"], given["weight"]
    added = _bytes(residual) + _bytes(given["added"]) if given["HAS_ADDED"] else 0
    return LaunchWork(kernel, _bytes(residual) + added + _bytes(output) + _bytes(weight))


def _rotary(kernel: str, given: Arguments) -> LaunchWork:
    num_tokens, head_dim = len(given["heads"]), given["HEAD_DIM"]
    num_rotated = num_tokens * given["num_heads"] * head_dim
    return LaunchWork(kernel, 2 * num_rotated * given["heads"].dtype.itemsize + 4 * num_tokens * head_dim)


def _silu_mul(kernel: str, given: Arguments) -> LaunchWork:
    return LaunchWork(kernel, _bytes(given["gate_up"]) + _bytes(given["output"]))


def _logits_once(kernel: str, given: Arguments) -> LaunchWork:
    return LaunchWork(kernel, _bytes(given["logits"]))


def _token_bitmask(kernel: str, given: Arguments) -> LaunchWork:
    """Half of the tokens are taken to be banned, and so written."""
    mask = given["bitmask"]
    return LaunchWork(kernel, _bytes(mask) + given["logits"].dtype.itemsize * len(mask) * given["VOCAB"] // 2)


def _edits(column: str) -> "Callable[[str, Arguments], LaunchWork]":
    """Of each token its id, what is said of it, and its logit, read and written."""

    def of(kernel: str, given: Arguments) -> LaunchWork:
        tokens = given["token_ids"]
        each = tokens.dtype.itemsize + given[column].dtype.itemsize + 2 * given["logits"].dtype.itemsize
        return LaunchWork(kernel, tokens.numel() * each)

    return of


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.dtype.itemsize)


_WORKS: dict[str, Callable[[str, Arguments], LaunchWork]] = {
    "paged_attention_kernel": _attention,
    "split_reduction_kernel": _split_reduction,
    "kv_write_kernel": _kv_write,
    "qkv_kernel": _qkv,
    "rms_norm_kernel": _rms_norm,
    "rotary_kernel": _rotary,
    "silu_mul_kernel": _silu_mul,
    "token_bitmask_kernel": _token_bitmask,
    "penalties_kernel": _edits("counts"),
    "logit_bias_kernel": _edits("biases"),
    "best_tokens_kernel": _logits_once,
    "logprobs_kernel": _logits_once,
    "filtered_draw_kernel": _logits_once,
}
