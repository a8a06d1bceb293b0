"""Facts of an engine: what it is, its steps, and its blocks."""

from typing import NamedTuple


class EngineDescribed(NamedTuple):
    """Core: the facts of an engine that its metrics are labelled and sized by.

    `flops_per_token` leaves attention out; `kv_bytes_per_token` is what one cached token takes over all layers.
    The `world_size` ranks are `num_stages` of a pipeline, one after the other, each of equally many shards.
    """

    engine_index: int
    generation: int
    model_names: list[str]
    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    cache_dtype: str
    kv_cache_bytes: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    num_blocks_override: int
    world_size: int
    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_token: int
    described_at: int
    num_stages: int = 1


class EngineStateChanged(NamedTuple):
    """Core: from `changed_at` on the engine is `awake`, `paused`, `weights_offloaded` or `discard_all`."""

    state: str
    changed_at: int


class StepPlanned(NamedTuple):
    """Core: what one step will run, whom it left out and why, and the levels it saw.

    `request_ids`, `num_scheduled_tokens`, `num_computed_tokens` and `num_new_blocks` are parallel.
    `left_out_ids` and `left_out_reasons` are parallel; `head_reason` is the waiting queue's head's.
    `grammar_ids` wait beside the queue for their grammars to be compiled.
    """

    step: int
    schedule_begun_at: int
    schedule_ended_at: int
    request_ids: list[str]
    num_scheduled_tokens: list[int]
    num_computed_tokens: list[int]
    num_new_blocks: list[int]
    admitted_ids: list[str]
    admitted_cached_tokens: list[int]
    resumed_ids: list[str]
    preempted_ids: list[str]
    left_out_ids: list[str]
    left_out_reasons: list[str]
    head_reason: str
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_active_blocks: int
    grammar_ids: list[str] = []  # noqa: RUF012 (of a NamedTuple; nobody changes a record)


class StepAnswered(NamedTuple):
    """Core: the step's results were applied. `request_ids` got `num_new_tokens` used tokens each."""

    step: int
    executed_at: int
    sampled_at: int
    updated_at: int
    request_ids: list[str]
    num_new_tokens: list[int]
    num_wasted_rows: int


class StepFailed(NamedTuple):
    """Core: an unexpected error in a step; its batch was failed."""

    step: int
    error: str
    failed_at: int
    request_ids: list[str]


class WorkerStep(NamedTuple):
    """Worker: the parts of one step on one rank, which is stage times shards a stage plus shard.

    `exchange_ns` of its forward pass and sampling went by in exchanges with other ranks, most of it in waiting.
    It ran as a CUDA graph of `graph_size` rows, `num_padded_tokens` of them for nothing, or eagerly (0, 0), for
    `eager_reason` (records.EagerReason). `device_ns` a GPU was busy with steps before, as is known only later.
    """

    step: int
    rank: int
    received_at: int
    prepared_at: int
    forwarded_at: int
    sample_begun_at: int
    sampled_at: int
    num_tokens: int
    num_rows: int
    exchange_ns: int = 0
    graph_size: int = 0
    num_padded_tokens: int = 0
    eager_reason: str = "no_gpu"
    device_ns: int = 0


class WorkerLimits(NamedTuple):
    """Worker: the best that one rank's machine was seen to do, at the end of its warm-up.

    Matrix products in numbers of `dtype` (floating-point operations a second), and reading of memory; 0 where it
    is not known.
    """

    rank: int
    dtype: str
    flops_per_second: float
    bytes_per_second: float
    measured_at: int


class BlocksChanged(NamedTuple):
    """Core: blocks handed to and taken from sequences in a step, in columns.

    A sequence gets `allocated[i]` (in the order of its table), of which the first `num_hit_blocks[i]` came from
    the prefix cache, or gives back `freed[i]`.
    """

    step: int
    request_ids: list[str]
    allocated: list[list[int]]
    freed: list[list[int]]
    num_hit_blocks: list[int]


class BlocksCached(NamedTuple):
    """Core: blocks entered (or, with `evicted`, left) the prefix cache; hashes are the first 8 bytes."""

    step: int
    block_ids: list[int]
    hashes: list[bytes]
    evicted: bool


class BlocksKeyframe(NamedTuple):
    """Core: a slice of the block pool as it is after `step`, so that a reader which lost records catches up.

    Blocks `first_block` to `first_block + len(reference_counts)`; `hashes` are the first 8 bytes, empty where the
    block holds no cached content.
    """

    step: int
    first_block: int
    reference_counts: list[int]
    hashes: list[bytes]
