"""The facts a serving process records: versioned NamedTuples of plain values, never prompt or completion text.

Moments end in `_at` and are `time.monotonic_ns()`; lengths end in `_seconds`; columns of one record are parallel.
"""

from typing import NamedTuple

SCHEMA_VERSION = 1


class ProcessStarted(NamedTuple):
    """A process of the tree began. `wall_at` is `time.time_ns()` at `started_at`, the only wall time recorded."""

    role: str
    pid: int
    started_at: int
    wall_at: int


class ProcessPhase(NamedTuple):
    """One named part of start-up (imports, load, cache, warm-up) took place between the two moments."""

    role: str
    phase: str
    begun_at: int
    ended_at: int


class ProcessReady(NamedTuple):
    """The process answered READY to its owner."""

    role: str
    pid: int
    ready_at: int


class ProcessExited(NamedTuple):
    """An owner saw its child end. `exit_code` is negative for a signal, as `subprocess` reports it."""

    role: str
    pid: int
    exit_code: int
    exited_at: int


class RequestSubmitted(NamedTuple):
    """API server: one sequence left for the core. The moments are the API server's stages in order."""

    request_id: str
    client_index: int
    external_id: str
    sequence_index: int
    num_sequences: int
    received_at: int
    parsed_at: int
    rendered_at: int
    tokenized_at: int
    submitted_at: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int


class RequestEnded(NamedTuple):
    """API server: the one ending of a sequence. `finish_reason` is stop, length, abort, error or repetition."""

    request_id: str
    client_index: int
    finish_reason: str
    error: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    first_token_at: int
    last_token_at: int
    ended_at: int


class RequestDelivered(NamedTuple):
    """API server: the client's socket accepted the last byte of an HTTP reply (all its sequences)."""

    request_id: str
    client_index: int
    status: int
    delivered_at: int


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
    """Core: blocks handed to and taken from one sequence in a step, with how many came from the prefix cache."""

    step: int
    request_id: str
    allocated: list[int]
    freed: list[int]
    num_hit_blocks: int


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
    | RequestSubmitted
    | RequestEnded
    | RequestDelivered
    | RequestTaken
    | RequestReleased
    | StepPlanned
    | StepAnswered
    | StepFailed
    | BlocksChanged
    | BlocksCached
    | WorkerStep
    | FrameDropped
)
