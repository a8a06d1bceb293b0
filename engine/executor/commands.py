"""What the executor and its workers say to each other over the shared-memory queues."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from vllm_obs.engine.codec import read_fields
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.messages import WIRE_VERSION
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.wire import FrameEncoder, close_frames, open_frames
from vllm_obs.engine.wire_checks import check_answer, check_plan

LOADED = "LOADED"
"""On the status pipe: the weights are there. Payload: block bytes, available bytes, phases."""

Phases = list[tuple[str, float]]

MAX_STEP_PAYLOAD_BYTES = 192 << 20
"""A whole batch's sampling goes in one plan. Below the queue's limit of a message, which has buffers beside it."""


class WorkerStepError(VllmObsError):
    """A step failed inside a worker, which goes on."""


class InitializeCache(NamedTuple):
    """To every rank: allocate this many blocks, warm up, say READY."""

    num_blocks: int


class ExecuteModel(NamedTuple):
    """To every rank: run the forward pass of a plan."""

    call_id: int
    plan: StepPlan


class RowChanges(NamedTuple):
    """How a plan's rows differ from an earlier one's: which are left out, by their places, who follows the rest.

    New rows come first in the plan, as always.
    """

    left_out: list[int]
    added_ids: list[str]
    new_rows: list[NewRow]
    released_ids: list[str]


class ExecuteNext(NamedTuple):
    """ExecuteModel, told by the rows of an earlier call (plan_stream.py); `columns` are plan_columns.py's."""

    call_id: int
    earlier_call_id: int
    step: int
    columns: bytes
    changes: RowChanges | None


class SampleTokens(NamedTuple):
    """To every rank: sample the plan that ran last."""

    call_id: int
    masks: GrammarMasks | None


class Profile(NamedTuple):
    """To every rank: begin the ordered profile; without an order end it, or (`is_look`) only tell."""

    call_id: int
    order: ProfileOrder | None
    is_look: bool


class Executed(NamedTuple):
    """From the output rank: the forward pass ran."""

    call_id: int


class Sampled(NamedTuple):
    """From the output rank: the step's answer."""

    call_id: int
    output: ModelRunnerOutput


class Profiled(NamedTuple):
    """From the output rank: whether a profile is under way there. What becomes of it each rank records."""

    call_id: int
    is_under_way: bool


class CallFailed(NamedTuple):
    """From any rank: the call raised this, and the worker goes on."""

    call_id: int
    error: str


class PeersMissing(NamedTuple):
    """From any rank: it waited for `peers` in the middle of this call, at least one of whom did not come."""

    call_id: int
    peers: list[int]
    error: str


Command = InitializeCache | ExecuteModel | ExecuteNext | SampleTokens | Profile
Reply = Executed | Sampled | Profiled | CallFailed | PeersMissing

_CODES: dict[type[Any], int] = {
    InitializeCache: 32,
    ExecuteModel: 33,
    SampleTokens: 34,
    Profile: 35,
    ExecuteNext: 36,
    Executed: 48,
    Sampled: 49,
    CallFailed: 50,
    Profiled: 51,
    PeersMissing: 52,
}
_KINDS = {code: kind for kind, code in _CODES.items()}
_SAME_ROWS = bytes([37])
"""ExecuteNext without changes: most plans, so that they have a short way of their own."""
_SAME_ROWS_HEAD = struct.Struct("=Bqqq")


def encode(encoder: FrameEncoder, message: Command | Reply) -> list[Buffer]:
    """The frames of a command or a reply."""
    if isinstance(message, ExecuteNext) and message.changes is None:
        return [_SAME_ROWS, _SAME_ROWS_HEAD.pack(WIRE_VERSION, *message[:3]) + message.columns]
    return encoder.frames(_CODES[type(message)], message, MAX_STEP_PAYLOAD_BYTES)


def decode(frames: Sequence[Buffer]) -> Command | Reply:
    """The command or reply in these frames, its columns checked, or WireError."""
    if len(frames) == 2 and frames[0] == _SAME_ROWS:
        return _decode_same_rows(frames[1])
    code, values, arrays = open_frames(frames, MAX_STEP_PAYLOAD_BYTES)
    kind = _KINDS.get(code)
    if kind is None:
        raise WireError("type", f"no command or reply has type {code}")
    message: Command | Reply = close_frames(read_fields(kind, values, arrays), arrays)
    if isinstance(message, ExecuteModel):
        check_plan(message.plan)
    elif isinstance(message, Sampled):
        check_answer(message.output)
    return message


def _decode_same_rows(payload: Buffer) -> ExecuteNext:
    if len(payload) < _SAME_ROWS_HEAD.size:
        raise WireError("size", f"a plan of {len(payload)} bytes")
    version, call_id, earlier_call_id, step = _SAME_ROWS_HEAD.unpack_from(payload)
    if version != WIRE_VERSION:
        raise WireError("version", f"this side speaks version {WIRE_VERSION}")
    return ExecuteNext(call_id, earlier_call_id, step, bytes(payload[_SAME_ROWS_HEAD.size :]), None)


def rank_title(rank: int, config: VllmConfig) -> str:
    """What a worker process is called: its engine where there are several, its shard, its stage of a pipeline.

    Ranks that are neither shard nor stage (one alone, and those of a synthetic engine) are only counted.
    """
    parallel = config.parallel
    num_shards, has_engines = parallel.tensor_parallel_size, parallel.data_parallel_size > 1
    is_placed = num_shards * parallel.pipeline_parallel_size == parallel.world_size
    place = f"TP{rank}"
    if is_placed and (has_engines or parallel.world_size > 1):
        stage, shard = divmod(rank, num_shards)
        place = f"TP{shard}_PP{stage}"
    return f"Worker_DP{config.engine_index}_{place}" if has_engines else f"Worker_{place}"
