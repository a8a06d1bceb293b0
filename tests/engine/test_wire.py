"""The wire: what goes in comes out, and nothing else comes in."""

import random
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.codec_arrays import INLINE_MAX_BYTES, MAX_BUFFERS
from vllm_obs.engine.codec_columns import pack_int_lists, pack_ints, unpack_int_lists
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.executor import commands
from vllm_obs.engine.messages import (
    WIRE_VERSION,
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    Logprobs,
    RequestType,
    SamplingSpec,
    SchedulerStats,
    UtilityCall,
    UtilityResult,
)
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, NewRow, StepPlan, WorkerMoments
from vllm_obs.engine.wire import FrameEncoder, decode_outputs, decode_request

ADD, ABORT = bytes([RequestType.ADD]), bytes([RequestType.ABORT])


def int32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def plain(value: Any) -> Any:
    """The value with arrays as (dtype, shape, list), so that whole messages compare."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    if isinstance(value, tuple):
        return (type(value).__name__, *map(plain, value))
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def request(num_tokens: int = 5, **fields: Any) -> EngineCoreRequest:
    prompt = np.arange(num_tokens, dtype=np.int32)
    sampling = SamplingSpec(
        temperature=0.5,
        seed=2**63,
        stop_token_ids=(3, 4),
        logit_bias=((7, -1.5),),
        bad_words_ids=((1, 2), (3,)),
        logprobs=2,
    )
    return EngineCoreRequest("r-1", 0, 3, prompt, sampling, -1, "salt", 17)._replace(**fields)


def logprobs(num_positions: int, width: int = 3) -> Logprobs:
    shape = (num_positions, width)
    values = np.linspace(-9, 0, num_positions * width, dtype=np.float32).reshape(shape)
    return Logprobs(np.ones(shape, np.int32), values, np.ones(num_positions, np.int32))


def outputs(**fields: Any) -> EngineCoreOutputs:
    message = EngineCoreOutputs(
        client_index=0,
        engine_index=0,
        generation=3,
        step=9,
        request_ids=["a", "b"],
        num_new_tokens=[2, 0],
        new_token_ids=int32(5, 6),
        finish_reasons=[-1, 3],
        stop_token_ids=[-1, -1],
        num_cached_tokens=[4, 2**40],
        logprobs=[(0, logprobs(2))],
        prompt_logprobs=[(0, logprobs(2000))],
        errors=[(1, "invalid_logits", "not numbers")],
        utility=UtilityResult(4, {"k": [1, None, True, "é", b"\x00"]}, ""),
        stats=SchedulerStats(1, 2, 0.5, 3),
        sampled_at=5,
        sent_at=6,
    )
    return message._replace(**fields)


def plan() -> StepPlan:
    row = NewRow("n", np.arange(3000, dtype=np.int32), 2900, SamplingSpec(), [4, 5], 16)
    return StepPlan(3, [row], ["a", "b", "c"], [[], [7, 8], []], [1, 2, 3], [-1, 5, -1], [100, 1, 1, 1], ["z"])


def answer() -> ModelRunnerOutput:
    moments = [WorkerMoments(0, 1, 2, 3, 4, 5)]
    failed = [("b", "invalid_logits", "no")]
    return ModelRunnerOutput(3, ["a"], [9], [("a", logprobs(1))], [("a", logprobs(700))], failed, moments)


@pytest.mark.parametrize(
    "message",
    [
        request(),
        request(num_tokens=50_000, cache_salt=None),
        request(num_tokens=0),
        AbortRequests(0, 3, ["a", "b"], 2),
        UtilityCall(1, 3, 77, "reset", [1, "x", None, 1.5, [True], {"a": b"b"}]),
    ],
)
def test_a_message_to_the_engine_comes_back_as_it_was(message: Any) -> None:
    assert plain(decode_request(FrameEncoder().request(message))) == plain(message)


@pytest.mark.parametrize("message", [outputs(), outputs(utility=None, stats=None, errors=[])])
def test_outputs_come_back_as_they_were(message: EngineCoreOutputs) -> None:
    assert plain(decode_outputs(FrameEncoder().outputs(message))) == plain(message)


@pytest.mark.parametrize(
    "message",
    [
        commands.ExecuteModel(1, plan()),
        commands.SampleTokens(2, GrammarMasks(["a"], int32(1, 2).reshape(1, 2))),
        commands.SampleTokens(2, None),
        commands.Sampled(3, answer()),
        commands.CallFailed(3, "why"),
        commands.InitializeCache(12),
    ],
)
def test_commands_and_replies_come_back_as_they_were(message: Any) -> None:
    assert plain(commands.decode(commands.encode(FrameEncoder(), message))) == plain(message)


def test_only_large_arrays_get_a_frame_of_their_own() -> None:
    limit = INLINE_MAX_BYTES // 4
    assert len(FrameEncoder().request(request(num_tokens=limit))) == 2
    assert len(FrameEncoder().request(request(num_tokens=limit + 1))) == 3


def test_more_large_arrays_than_frames_are_allowed_go_inside_the_payload() -> None:
    row = logprobs(1030, 1)._replace(ranks=int32(*[1] * 1030))
    num_rows = MAX_BUFFERS // 3 + 2
    columns = {"request_ids": [str(i) for i in range(num_rows)], "errors": [], "new_token_ids": int32()}
    zeros = dict.fromkeys(
        ("num_new_tokens", "finish_reasons", "stop_token_ids", "num_cached_tokens"), [0] * num_rows
    )
    message = outputs(**columns, **zeros, logprobs=[], prompt_logprobs=[(i, row) for i in range(num_rows)])
    frames = FrameEncoder().outputs(message)
    assert len(frames) == 2 + MAX_BUFFERS
    assert plain(decode_outputs(frames)) == plain(message)


def test_a_decoded_array_is_its_own_memory() -> None:
    array = decode_request(FrameEncoder().request(request(num_tokens=2000))).prompt_token_ids  # type: ignore[union-attr]
    assert array.flags.owndata or array.base.flags.owndata
    assert array.flags.writeable
    assert array.flags.aligned


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros(3, np.int64), object(), {1, 2}, 2**70])
def test_what_does_not_travel_is_refused_before_it_is_sent(value: Any) -> None:
    encoder = FrameEncoder()
    with pytest.raises(WireError):
        encoder.request(UtilityCall(0, 0, 1, "m", [value]))
    assert plain(decode_request(encoder.request(request()))) == plain(request())


def payload(*fields: Any, version: Any = WIRE_VERSION) -> bytes:
    return bytes(msgpack.packb([version, *fields]))


def add_fields() -> list[Any]:
    """The fields of a small ADD, as they travel."""
    return list(msgpack.unpackb(FrameEncoder().request(request())[1])[1:])


def changed(field: int, value: Any) -> list[bytes]:
    fields = add_fields()
    fields[field] = value
    return [ADD, payload(*fields)]


def changed_sampling(field: int, value: Any) -> list[bytes]:
    fields = add_fields()
    fields[4][field] = value
    return [ADD, payload(*fields)]


GOOD = [bytes(frame) for frame in FrameEncoder().request(request())]
LARGE = [bytes(frame) for frame in FrameEncoder().request(request(num_tokens=2000))]

BAD_FRAMES: dict[str, tuple[str, list[bytes]]] = {
    "no frames": ("parts", []),
    "one frame": ("parts", [ADD]),
    "2000 frames": ("parts", [*GOOD, *[b"x"] * 2000]),
    "empty type": ("parts", [b"", GOOD[1]]),
    "delimiter": ("parts", [b"", *GOOD]),
    "a frame too many": ("parts", [*GOOD, b""]),
    "empty payload": ("decode", [ADD, b""]),
    "truncated": ("decode", [ADD, GOOD[1][:-1]]),
    "trailing byte": ("decode", [ADD, GOOD[1] + b"\x00"]),
    "top is a map": ("type", [ADD, msgpack.packb({"a": 1})]),
    "top is an int": ("type", [ADD, msgpack.packb(7)]),
    "unknown type": ("type", [b"\xfe", GOOD[1]]),
    "internal type": ("type", [bytes([RequestType.EXECUTOR_FAILED]), GOOD[1]]),
    "unknown version": ("version", [ADD, payload(*add_fields(), version=99)]),
    "version true": ("version", [ADD, payload(*add_fields(), version=True)]),
    "too few fields": ("type", [ADD, payload(*add_fields()[:-1])]),
    "too many fields": ("type", [ADD, payload(*add_fields(), 1)]),
    "the fields of another": ("type", [ABORT, GOOD[1]]),
    "array32 of 4 G": ("decode", [ADD, b"\xdd\xff\xff\xff\xff" + b"\x01" * 15]),
    "map32 of 4 G": ("decode", [ADD, b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 7]),
    "bin32 of 4 G": ("decode", [ADD, b"\xc6\xff\xff\xff\xff" + b"\x01" * 15]),
    "str32 of 4 G": ("decode", [ADD, b"\xdb\xff\xff\xff\xff" + b"\x01" * 15]),
    "ext32 of 4 G": ("decode", [ADD, b"\xc9\xff\xff\xff\xff" + b"\x01" * 15]),
    "ext": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.ExtType(5, b"x")])]),
    "empty ext": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.ExtType(5, b"")])]),
    "timestamp": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.Timestamp(1, 2)])]),
    "bad utf-8": ("decode", [ADD, b"\x92\x01\xa2\xff\xfe"]),
    "int keys": ("decode", [ADD, b"\x92\x01\xdf\x00\x00\x03\xe8" + b"\x05\x06" * 1000]),
    "nested 1500 deep": ("decode", [ADD, b"\x91" * 1500 + b"\xc0"]),
    "pickle": ("decode", [ADD, b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93."]),
    "a map that names a class": ("type", [ADD, payload({"PickleWrapper": b"cos\nsystem\n(S'ls'\ntR."})]),
    "id is bytes": ("type", changed(0, b"r-1")),
    "client is true": ("type", changed(1, True)),
    "prompt is a list": ("type", changed(3, [1, 2, 3])),
    "prompt of floats": ("type", changed(3, [b"\x00" * 8, "f4", [2]])),
    "prompt of objects": ("type", changed(3, [b"\x00" * 8, "O", [1]])),
    "prompt with two dimensions": ("type", changed(3, [b"\x00" * 16, "i4", [2, 2]])),
    "shape too large": ("type", changed(3, [b"\x00" * 16, "i4", [2**40]])),
    "shape wraps to the size": ("type", changed(3, [b"", "i4", [2**32, 2**32]])),
    "shape of another size": ("type", changed(3, [b"\x00" * 16, "i4", [5]])),
    "negative shape": ("type", changed(3, [b"\x00" * 16, "i4", [-2, -2]])),
    "shape of true": ("type", changed(3, [b"\x00" * 4, "i4", [True]])),
    "half a number": ("type", changed(3, [b"\x00" * 3, "i4", [1]])),
    "frame that is not there": ("type", changed(3, [0, "i4", [1]])),
    "frame index negative": ("type", changed(3, [-1, "i4", [1]])),
    "buffer too short": ("type", [*LARGE[:2], LARGE[2][:-4]]),
    "buffer too long": ("type", [*LARGE[:2], LARGE[2] + b"\x00" * 4]),
    "a buffer twice": ("parts", [*LARGE, LARGE[2]]),
    "temperature NaN": ("type", changed_sampling(0, float("nan"))),
    "temperature infinite": ("type", changed_sampling(0, float("inf"))),
    "temperature text": ("type", changed_sampling(0, "1")),
    "max_tokens true": ("type", changed_sampling(9, True)),
    "max_tokens 1.5": ("type", changed_sampling(9, 1.5)),
    "stop ids 2^64 - 1": ("type", changed_sampling(11, [2**64 - 1])),
    "stop ids cut": ("type", changed_sampling(11, b"i\x00\x00")),
    "stop ids of another width": ("type", changed_sampling(11, b"d" + b"\x00" * 8)),
    "bias with three entries": ("type", changed_sampling(13, [[1, 2.0, 3]])),
    "bad words of text": ("type", changed_sampling(15, ["ab"])),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_message_is_refused_for_its_reason(name: str) -> None:
    reason, frames = BAD_FRAMES[name]
    with pytest.raises(WireError) as refusal:
        decode_request(frames)
    assert refusal.value.reason == reason


@pytest.mark.parametrize("name", ["array32 of 4 G", "map32 of 4 G", "bin32 of 4 G", "shape too large"])
def test_nothing_is_allocated_for_a_declared_size(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_request(BAD_FRAMES[name][1])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_refused_request_names_its_owner_where_that_is_readable() -> None:
    with pytest.raises(WireError) as refusal:
        decode_request(changed_sampling(0, float("nan")))
    assert (refusal.value.request_id, refusal.value.client_index) == ("r-1", 0)
    with pytest.raises(WireError) as refusal:
        decode_request(BAD_FRAMES["truncated"][1])
    assert refusal.value.request_id is None


@pytest.mark.parametrize(
    "broken",
    [
        {"num_new_tokens": [2]},
        {"finish_reasons": []},
        {"num_new_tokens": [1, 0]},
        {"num_new_tokens": [3, -1]},
        {"errors": [(2, "internal_error", "")]},
        {"logprobs": [(-1, logprobs(1))]},
        {"logprobs": [(0, logprobs(1)._replace(ranks=int32(1, 2)))]},
        {"new_token_ids": int32(5, 6).reshape(1, 2)},
    ],
)
def test_outputs_whose_columns_disagree_are_refused(broken: dict[str, Any]) -> None:
    frames = FrameEncoder().outputs(outputs(**broken))
    with pytest.raises(WireError, match="type"):
        decode_outputs(frames)


def test_plans_whose_columns_disagree_are_refused() -> None:
    for broken in (plan()._replace(num_scheduled_tokens=[1]), plan()._replace(running_new_blocks=[[]])):
        with pytest.raises(WireError, match="type"):
            commands.decode(commands.encode(FrameEncoder(), commands.ExecuteModel(1, broken)))


@pytest.mark.parametrize(
    "columns",
    [[b"i\xff\xff\xff\x7f", b"i"], [b"i\xff\xff\xff\xff", b"i"], [b"i"], b"i", [pack_ints([2]), pack_ints([1])]],
)
def test_lists_of_ints_whose_columns_disagree_are_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match=r"disagree|columns"):
        unpack_int_lists(columns)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=5))
def test_lists_of_ints_come_back_as_they_were(lists: list[list[int]]) -> None:
    assert unpack_int_lists(pack_int_lists(lists)) == lists


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_damaged_message_is_refused_or_still_a_message(randomness: random.Random) -> None:
    frames = [bytearray(frame) for frame in randomness.choice([GOOD, LARGE])]
    for _ in range(randomness.randint(1, 4)):
        frame = randomness.choice(frames)
        position = randomness.randrange(len(frame))
        frame[position] = randomness.randrange(256)
    try:
        decoded = decode_request([bytes(frame) for frame in frames])
    except WireError:
        return
    assert isinstance(decoded, EngineCoreRequest | AbortRequests | UtilityCall)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode_request(frames)


def test_a_payload_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(WireError, match="size"):
        FrameEncoder().request(UtilityCall(0, 0, 1, "m", ["x" * 900_000] * 10))
    with pytest.raises(WireError, match="size"):
        decode_request([ADD, b"\xc0" * (9 << 20)])


def test_decoding_imports_nothing_and_finds_no_class() -> None:
    script = """
import sys
from vllm_obs.engine.wire import decode_request
from vllm_obs.engine.codec_plain import WireError
seen = []
def attempt(frames):
    try:
        decode_request(frames)
    except WireError:
        pass
frames = %r
attempt(frames[0])
watched = {"import", "pickle.find_class", "exec"}
sys.addaudithook(lambda event, args: seen.append(event) if event in watched else None)
for bad in frames:
    attempt(bad)
print(seen)
"""
    frames = [[bytes(frame) for frame in frames] for _, frames in BAD_FRAMES.values() if len(frames) < 10]
    done = subprocess.run(
        [sys.executable, "-"], input=script % (frames,), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_hostile_messages_leave_no_memory_behind() -> None:
    hostile = [
        [ADD, (b"\xdd" + struct.pack(">I", 200)) * 100 + b"\xc0" * 100],
        BAD_FRAMES["int keys"][1],
        BAD_FRAMES["ext"][1],
        BAD_FRAMES["bad utf-8"][1],
    ]

    def decode_all(times: int) -> None:
        for _ in range(times):
            for frames in hostile:
                with pytest.raises(WireError):
                    decode_request(frames)

    decode_all(50)
    before = resident_bytes()
    decode_all(1000)
    assert resident_bytes() - before < 4 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4096
