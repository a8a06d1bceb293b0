"""Whatever becomes of a message of any kind on its way: it is refused with a WireError, or it is a message."""

import random
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import msgpack
import pytest
from broken_frames import Frames, broken
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import COMMANDS, OUTPUTS, REQUESTS, execute_next, plan

from vllm_obs.engine.codec_plain import WireError, WireReason
from vllm_obs.engine.executor import commands
from vllm_obs.engine.executor.plan_stream import PlanReader
from vllm_obs.engine.messages import EngineCoreOutputs
from vllm_obs.engine.wire import HELLO, FrameEncoder, Hello, decode_as, decode_outputs, decode_request

NUM_SEEDS = 400
"""Broken messages of each kind in a run."""
ROOM_BYTES = 2 << 20
"""What a refusal may take beside the message itself, at most."""

Decode = Callable[[Frames], Any]

ENCODER = FrameEncoder()


def hear_next(frames: Frames) -> Any:
    """As a rank does that has heard the plan which this one is told by."""
    reader = PlanReader()
    reader.heard(commands.ExecuteModel(1, plan()))
    return reader.heard(commands.decode(frames))


KINDS: dict[str, tuple[Frames, Decode]] = {
    **{name: (list(map(bytes, ENCODER.request(each))), decode_request) for name, each in REQUESTS.items()},
    **{name: (list(map(bytes, ENCODER.outputs(each))), decode_outputs) for name, each in OUTPUTS.items()},
    **{
        name: (list(map(bytes, commands.encode(ENCODER, each))), commands.decode)
        for name, each in COMMANDS.items()
    },
    "execute next": (list(map(bytes, commands.encode(ENCODER, execute_next()))), hear_next),
    "hello": (
        list(map(bytes, ENCODER.frames(HELLO, Hello(0, 1, 2)))),
        lambda frames: decode_as(HELLO, Hello, frames),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_message_is_refused_or_is_one_and_takes_no_memory(kind: str) -> None:
    frames, decode = KINDS[kind]
    num_refused, reasons = 0, set[str]()
    decode(frames)
    tracemalloc.start()
    try:
        for seed in range(NUM_SEEDS):
            damaged = broken(frames, random.Random(f"{kind} {seed}"))
            num_bytes = sum(map(len, damaged))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                again(decode(damaged))
            except WireError as error:
                num_refused += 1
                reasons.add(error.reason)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < ROOM_BYTES + 40 * num_bytes, seed
    finally:
        tracemalloc.stop()
    assert num_refused > NUM_SEEDS / 2
    assert reasons <= set(get_args(WireReason))


def again(message: Any) -> None:
    """What was taken for a message can be sent on, as a core sends on what it is asked."""
    if isinstance(message, EngineCoreOutputs):
        ENCODER.outputs(message)
    elif type(message) in commands._CODES:
        commands.encode(ENCODER, message)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.randoms(use_true_random=False))
def test_a_message_broken_at_random_is_refused_or_is_one(kind: str, draw: random.Random) -> None:
    frames, decode = KINDS[kind]
    try:
        again(decode(broken(frames, draw)))
    except WireError:
        return


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=25,
    ),
)
def test_any_value_in_the_place_of_a_payload_is_refused_or_is_one(kind: str, value: Any) -> None:
    frames, decode = KINDS[kind]
    try:
        again(
            decode([frames[0], bytes(msgpack.packb([1, value] if not isinstance(value, list) else [1, *value]))])
        )
    except WireError:
        return


def test_every_kind_of_message_is_broken_here() -> None:
    kinds = {type(message) for message in (*REQUESTS.values(), *COMMANDS.values())}
    assert kinds >= set(commands._CODES)
    assert len(kinds) == len(commands._CODES) + 3
