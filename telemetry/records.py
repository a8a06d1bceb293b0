"""The facts a serving process records: versioned NamedTuples of plain values, never prompt or completion text.

Moments end in `_at` and are `time.monotonic_ns()`; lengths end in `_seconds`; columns of one record are parallel.
"""

from typing import Literal, NamedTuple

SCHEMA_VERSION = 1

WaitReason = Literal[
    "max_num_seqs",
    "token_budget",
    "kv_blocks",
    "grammar",
    "lora_slots",
    "remote_kv",
    "priority",
    "paused",
    "step_in_progress",
    "head_of_line",
]
"""Why a sequence is left out of a step."""


class ProcessStarted(NamedTuple):
    """A process of the tree began. `wall_at` is `time.time_ns()` at `started_at`, the only wall time recorded."""

    role: str
    pid: int
    started_at: int
    wall_at: int


class ProcessPhase(NamedTuple):
    """One named part of start-up (imports, load, cache, warm-up) took place between the two moments.

    Meanwhile its process used so much CPU time, all threads together, and read so many bytes from storage (what
    was in the page cache already does not count).
    """

    role: str
    phase: str
    begun_at: int
    ended_at: int
    cpu_seconds: float = 0.0
    num_read_bytes: int = 0


class ProcessReady(NamedTuple):
    """The process answered READY to its owner."""

    role: str
    pid: int
    ready_at: int


class ProcessExited(NamedTuple):
    """An owner saw its child end. `exit_code` is negative for a signal, as `subprocess` reports it.

    `was_told` says that the owner had ordered the end, or brought it about.
    """

    role: str
    pid: int
    exit_code: int
    exited_at: int
    was_told: bool = False


class EngineDescribed(NamedTuple):
    """Core: the facts of an engine that its metrics are labelled and sized by.

    `flops_per_token` leaves attention out; `kv_bytes_per_token` is what one cached token takes over all layers.
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


class EngineStateChanged(NamedTuple):
    """Core: from `changed_at` on the engine is `awake`, `paused`, `weights_offloaded` or `discard_all`."""

    state: str
    changed_at: int


class RequestSubmitted(NamedTuple):
    """API server: one sequence left for the core. The moments are the API server's stages in order.

    `http_id` is our id of the HTTP request (empty offline), `external_id` the client's label for it.
    `num_sequences` is n, `num_prompts` how many prompts the HTTP request has. `operation` is chat, text_completion or
    embeddings. `account` is the label of the API key it came with (never the key), empty without keys. `trace_parent`
    is a W3C traceparent: the trace and the span the request's own span is a child of (a span id of zeros: of none),
    empty where nothing is traced.
    """

    request_id: str
    client_index: int
    http_id: str
    external_id: str
    sequence_index: int
    num_sequences: int
    num_prompts: int
    operation: str
    is_streamed: bool
    model: str
    trace_parent: str
    received_at: int
    parsed_at: int
    rendered_at: int
    tokenized_at: int
    submitted_at: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    temperature: float
    top_p: float
    top_k: int
    account: str = ""


class RequestEnded(NamedTuple):
    """API server: the one ending of a sequence. `finish_reason` is stop, length, abort, error or repetition.

    `taken_at` is when the engine's last message about it was taken (0 when there was none); the text of its last
    tokens was made, or the ending decided here, at `ended_at`.
    """

    request_id: str
    client_index: int
    finish_reason: str
    error: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    first_token_at: int
    last_token_at: int
    taken_at: int
    ended_at: int


class OutputsTaken(NamedTuple):
    """API server: one step's message was taken at `taken_at` and made into text by `processed_at`."""

    step: int
    engine_index: int
    client_index: int
    sampled_at: int
    sent_at: int
    taken_at: int
    processed_at: int
    num_sequences: int


class HttpRequestEnded(NamedTuple):
    """API server: an HTTP request's last byte was accepted by the client's socket, or its client left.

    `handler` is the route's template, `method` the verb; both are `other` outside the closed set. `status` is
    499 where the client left before it was answered. `reason` is the error's word from the closed set, empty
    where there is none.
    """

    http_id: str
    client_index: int
    external_id: str
    handler: str
    method: str
    status: int
    reason: str
    trace_parent: str
    received_at: int
    first_byte_at: int
    ended_at: int
    num_request_bytes: int
    num_response_bytes: int


class LoopSampled(NamedTuple):
    """API server: once a second, how late its event loop ran at worst since the last time, and its queues."""

    client_index: int
    sampled_at: int
    max_lag_seconds: float
    num_open_http: int
    num_open_sequences: int
    num_queued_deltas: int


class GarbageSampled(NamedTuple):
    """API server: once a second, what its garbage collector has done so far, youngest generation first."""

    client_index: int
    sampled_at: int
    num_collections: list[int]
    num_collected: list[int]
    num_uncollectable: list[int]


class TelemetrySet(NamedTuple):
    """API server: detail level (0 to 3) and trace sample rate in force from `set_at` on."""

    detail_level: int
    sample_rate: float
    set_at: int


class RequestTaken(NamedTuple):
    """Core: the sequence was taken out of the inbox and queued."""

    request_id: str
    client_index: int
    submitted_at: int
    taken_at: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int


class RequestReleased(NamedTuple):
    """Core: the sequence left the scheduler and its blocks went back."""

    request_id: str
    finish_reason: str
    released_at: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int


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


class WorkerStep(NamedTuple):
    """Worker: the parts of one step on one rank."""

    step: int
    rank: int
    received_at: int
    prepared_at: int
    forwarded_at: int
    sample_begun_at: int
    sampled_at: int
    num_tokens: int
    num_rows: int


class BlocksKeyframe(NamedTuple):
    """Core: a slice of the block pool as it is after `step`, so that a reader which lost records catches up.

    Blocks `first_block` to `first_block + len(reference_counts)`; `hashes` are the first 8 bytes, empty where the
    block holds no cached content.
    """

    step: int
    first_block: int
    reference_counts: list[int]
    hashes: list[bytes]


class RequestKeyframe(NamedTuple):
    """Core: one live sequence as it is after `step`: its whole block table and counts."""

    step: int
    request_id: str
    is_running: bool
    block_ids: list[int]
    num_computed_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int


class MemorySampled(NamedTuple):
    """A process: what its memory holds at the end of a part of its start, or when it was asked (`phase` empty).

    `resident_bytes` is all of it that is in RAM. `parts` (libraries, weights, kv_cache, activations, …) and
    `part_bytes` are parallel: what each takes of the resident bytes; what no part explains is not listed. At the
    end of a start `ranges` is parallel to them too: where in its address space a part lies, first byte and length
    in turn, so that what of it is in RAM can be looked up later; `part_bytes` are then what was allocated. Among
    them are some of Python's `objects` (no part, 0 bytes): what lies around them is the interpreter's heap.
    """

    role: str
    pid: int
    phase: str
    resident_bytes: int
    parts: list[str]
    part_bytes: list[int]
    sampled_at: int
    ranges: list[list[int]] = []  # noqa: RUF012 (of a NamedTuple; nobody changes a record)


class ProfileBegun(NamedTuple):
    """A capture began in this process: `kind` is operators (the worker's torch profile) or samples (of stacks).

    `profile` is the capture's name, the same in all processes that take part. The bounds are those it was given.
    """

    profile: str
    kind: str
    role: str
    pid: int
    rank: int
    max_steps: int
    max_seconds: float
    begun_at: int


class ProfileEnded(NamedTuple):
    """A capture is over and its files are written; `error` says why there are none."""

    profile: str
    kind: str
    role: str
    pid: int
    rank: int
    num_steps: int
    num_samples: int
    ended_at: int
    written_at: int
    files: list[str]
    error: str


class StallBegun(NamedTuple):
    """Observer: an engine has work and has not moved since `stuck_at`.

    `role` and `pid` are the process that holds it up (`rank` is -1 where it is no worker), `activity` what that
    process says it does, in step `step`; `process_state` is the kernel's letter for it (T is stopped).
    """

    engine: str
    role: str
    pid: int
    rank: int
    activity: str
    step: int
    process_state: str
    says: str
    stuck_at: int
    noticed_at: int


class StallEnded(NamedTuple):
    """Observer: the engine moves again, or its process is gone."""

    engine: str
    role: str
    pid: int
    stuck_at: int
    ended_at: int


class IncidentFiled(NamedTuple):
    """Observer: an incident was written down. `cause` is from a closed set, `says` one sentence for people."""

    incident: str
    cause: str
    role: str
    pid: int
    says: str
    happened_at: int
    filed_at: int


class FrameDropped(NamedTuple):
    """A frame on a socket or queue did not decode or did not belong; `reason` is from a closed set."""

    where: str
    reason: str
    dropped_at: int


Record = (
    ProcessStarted
    | ProcessPhase
    | ProcessReady
    | ProcessExited
    | EngineDescribed
    | EngineStateChanged
    | RequestSubmitted
    | RequestEnded
    | OutputsTaken
    | HttpRequestEnded
    | LoopSampled
    | GarbageSampled
    | TelemetrySet
    | RequestTaken
    | RequestReleased
    | StepPlanned
    | StepAnswered
    | StepFailed
    | BlocksChanged
    | BlocksCached
    | BlocksKeyframe
    | RequestKeyframe
    | WorkerStep
    | MemorySampled
    | ProfileBegun
    | ProfileEnded
    | StallBegun
    | StallEnded
    | IncidentFiled
    | FrameDropped
)
