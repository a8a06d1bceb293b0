"""The wire: what goes in comes out, and nothing else comes in."""

import random
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from bad_frames import ADD, BAD_FRAMES, GOOD, LARGE, changed_sampling, sample_request
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import COMMANDS, OUTPUTS, REQUESTS, int32, logprobs, outputs, plain, plan

from vllm_obs.engine.codec_arrays import INLINE_MAX_BYTES, MAX_BUFFERS
from vllm_obs.engine.codec_columns import MAX_LISTS, pack_int_lists, pack_ints, unpack_int_lists
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.executor import commands
from vllm_obs.engine.executor.shm_queue import MAX_MESSAGE_BYTES
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreRequest,
    SamplingSpec,
    UtilityCall,
)
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.wire import MAX_PAYLOAD_BYTES, FrameEncoder, decode_outputs, decode_request


@pytest.mark.parametrize("name", REQUESTS)
def test_a_message_to_the_engine_comes_back_as_it_was(name: str) -> None:
    assert plain(decode_request(FrameEncoder().request(REQUESTS[name]))) == plain(REQUESTS[name])


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_come_back_as_they_were(name: str) -> None:
    assert plain(decode_outputs(FrameEncoder().outputs(OUTPUTS[name]))) == plain(OUTPUTS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_replies_come_back_as_they_were(name: str) -> None:
    assert plain(commands.decode(commands.encode(FrameEncoder(), COMMANDS[name]))) == plain(COMMANDS[name])


def test_only_large_arrays_get_a_frame_of_their_own() -> None:
    limit = INLINE_MAX_BYTES // 4
    assert len(FrameEncoder().request(sample_request(num_tokens=limit))) == 2
    assert len(FrameEncoder().request(sample_request(num_tokens=limit + 1))) == 3


def test_more_large_arrays_than_frames_are_allowed_go_inside_the_payload() -> None:
    row = logprobs(1030, 1)._replace(ranks=int32(*[1] * 1030))
    num_rows = MAX_BUFFERS // 3 + 2
    columns = {"request_ids": [str(i) for i in range(num_rows)], "errors": [], "new_token_ids": []}
    zeros = dict.fromkeys(
        ("num_new_tokens", "finish_reasons", "stop_token_ids", "num_cached_tokens"), [0] * num_rows
    )
    message = outputs(**columns, **zeros, logprobs=[], prompt_logprobs=[(i, row) for i in range(num_rows)])
    frames = FrameEncoder().outputs(message)
    assert len(frames) == 2 + MAX_BUFFERS
    assert plain(decode_outputs(frames)) == plain(message)


def test_a_decoded_array_is_its_own_memory() -> None:
    array = decode_request(FrameEncoder().request(sample_request(num_tokens=2000))).prompt_token_ids  # type: ignore[union-attr]
    assert array.flags.owndata or array.base.flags.owndata
    assert array.flags.writeable
    assert array.flags.aligned


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros(3, np.int64), object(), {1, 2}, 2**70])
def test_what_does_not_travel_is_refused_before_it_is_sent(value: Any) -> None:
    encoder = FrameEncoder()
    with pytest.raises(WireError):
        encoder.request(UtilityCall(0, 0, 1, "m", [value]))
    assert plain(decode_request(encoder.request(sample_request()))) == plain(sample_request())


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_message_is_refused_for_its_reason(name: str) -> None:
    reason, frames = BAD_FRAMES[name]
    with pytest.raises(WireError) as refusal:
        decode_request(frames)
    assert refusal.value.reason == reason


SIZES = ("array32 of 4 G", "map32 of 4 G", "bin32 of 4 G", "str32 of 4 G", "ext32 of 4 G", "shape too large")


@pytest.mark.parametrize("name", SIZES)
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
        {"errors": [(1, "a reason of its own", "")]},
        {"finish_reasons": [-1, 77]},
        {"finish_reasons": [-2, 3]},
        {"logprobs": [(-1, logprobs(1))]},
        {"logprobs": [(0, logprobs(1)._replace(ranks=int32(1, 2)))]},
        {"new_token_ids": [5, 2**31]},
        {"new_token_ids": [-(2**31) - 1, 6]},
        {"pooled": [(2, np.ones(3, np.float32))]},
        {"pooled": [(0, np.ones((1, 3), np.float32))]},
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


ONE = pack_ints([1])


@pytest.mark.parametrize(
    "columns",
    [
        b"i",
        [1, ONE, ONE],
        [b"i", ONE, ONE, ONE],
        [True, b"i", b"i", b"i"],
        [-1, b"i", b"i", b"i"],
        [MAX_LISTS + 1, b"i", b"i", b"i"],
        [2, ONE, pack_ints([2**31 - 1]), ONE],
        [2, ONE, pack_ints([-1]), ONE],
        [3, pack_ints([0, 1]), pack_ints([2, -1]), ONE],
        [2, ONE, pack_ints([1, 1]), pack_ints([1, 1])],
        [1, ONE, ONE, ONE],
        [2, pack_ints([-1]), ONE, ONE],
    ],
)
def test_lists_of_ints_whose_columns_disagree_are_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match=r"disagree|column|does not exist"):
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


def test_a_plan_may_hold_what_many_requests_may_ask_for() -> None:
    sampling = SamplingSpec(allowed_token_ids=tuple(range(49_152)))
    row = NewRow("n", int32(1), 1, sampling, [4], 0)
    large = StepPlan(3, [row] * 64, [], [], [], [], [1] * 64, [])
    frames = commands.encode(FrameEncoder(), commands.ExecuteModel(1, large))
    assert len(frames[1]) > MAX_PAYLOAD_BYTES
    command = commands.decode(frames)
    assert isinstance(command, commands.ExecuteModel)
    assert command.plan.new_rows[63].sampling == sampling
    assert commands.MAX_STEP_PAYLOAD_BYTES < MAX_MESSAGE_BYTES


def test_decoding_imports_nothing_and_finds_no_class() -> None:
    script = """
import sys
from vllm_obs.engine.wire import decode_outputs, decode_request
from vllm_obs.engine.executor import commands
from vllm_obs.engine.codec_plain import WireError
seen = []
def attempt(frames):
    for decode in (decode_request, decode_outputs, commands.decode):
        for kind in (*frames[:1], *(bytes([code]) for code in range(16, 53))):
            try:
                decode([kind, *frames[1:]])
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
