"""Plain steps travel in a form of their own, and come out as what they would be in the general one."""

from typing import Any

import msgspec
import numpy as np
import pytest
from wire_samples import OUTPUTS, logprobs, outputs, plain_outputs

from vllm_obs.engine.codec_plain import MAX_ITEMS, WireError
from vllm_obs.engine.messages import Detours, SchedulerStats, UtilityResult
from vllm_obs.engine.wire import OUTPUTS as GENERAL
from vllm_obs.engine.wire import PLAIN_OUTPUTS, FrameEncoder, decode_outputs
from vllm_obs.engine.wire_plain import PlainStep, is_plain


def frames_of(fields: dict[str, Any]) -> list[bytes]:
    """A plain message with other fields."""
    _, payload = FrameEncoder().outputs(plain_outputs(2))
    known = PlainStep(*msgspec.msgpack.decode(payload))
    return [bytes([PLAIN_OUTPUTS]), msgspec.msgpack.encode(known._replace(**fields))]


@pytest.mark.parametrize("num_rows", [1, 32, 256])
def test_a_plain_message_comes_out_as_it_went_in(num_rows: int) -> None:
    message = plain_outputs(num_rows)
    frames = FrameEncoder().outputs(message)
    assert [len(frames), frames[0]] == [2, bytes([PLAIN_OUTPUTS])]
    assert decode_outputs(frames) == message
    general = FrameEncoder().frames(GENERAL, message)
    assert decode_outputs(general) == message


def test_numbers_of_other_kinds_travel_as_numbers() -> None:
    message = plain_outputs(2)
    made = message._replace(new_token_ids=list(np.array(message.new_token_ids, np.int32)), step=np.int64(9))
    assert decode_outputs(FrameEncoder().outputs(made)) == message


@pytest.mark.parametrize(
    "more",
    [
        {"request_ids": [], "num_new_tokens": [], "new_token_ids": [], "finish_reasons": [], "stop_token_ids": []},
        {"num_new_tokens": [2, 1], "new_token_ids": [1, 2, 3]},
        {"num_new_tokens": [1, 0], "new_token_ids": [1]},
        {"finish_reasons": [-1, 1]},
        {"stop_token_ids": [5, -1]},
        {"logprobs": [(0, logprobs(1))]},
        {"prompt_logprobs": [(0, logprobs(1))]},
        {"errors": [(0, "invalid_logits", "")]},
        {"timings": [(1, 2, 3)]},
        {"detours": [(1, Detours())]},
        {"pooled": [(0, np.ones(3, np.float32))]},
        {"scheduled_ids": ["x"]},
        {"utility": UtilityResult(1, None, "")},
        {"stats": None},
    ],
    ids=str,
)
def test_what_has_more_to_tell_is_not_plain(more: dict[str, Any]) -> None:
    message = plain_outputs(2)
    assert is_plain(message)
    assert not is_plain(message._replace(**more))
    assert not is_plain(OUTPUTS["outputs"])


@pytest.mark.parametrize(
    "broken",
    [
        {"request_ids": ["a"]},
        {"new_token_ids": [1]},
        {"num_cached_tokens": []},
        {"new_token_ids": [1, -1]},
        {"new_token_ids": [1, 2**31]},
        {"new_token_ids": [1, True]},
        {"new_token_ids": [1, "2"]},
        {"request_ids": ["a", b"b"]},
        {"step": 1.5},
        {"client_index": None},
        {"stats": SchedulerStats(1, 2, float("nan"), 3)},
        {"stats": None},
    ],
    ids=str,
)
def test_a_plain_message_with_a_fault_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="type"):
        decode_outputs(frames_of(broken))


def test_other_versions_too_many_rows_and_none_are_refused() -> None:
    with pytest.raises(WireError, match="version"):
        decode_outputs(frames_of({"version": 2}))
    for num_rows in (0, MAX_ITEMS + 1):
        columns = {"request_ids": ["a"] * num_rows}
        columns |= dict.fromkeys(("new_token_ids", "num_cached_tokens"), [0] * num_rows)  # type: ignore[arg-type]
        with pytest.raises(WireError, match="size"):
            decode_outputs(frames_of(columns))


def test_more_or_fewer_frames_or_fields_are_refused() -> None:
    code, payload = frames_of({})
    for frames in ([code, payload, b""], [code], [code, payload[:-1]], [code, payload + b"\x01"]):
        with pytest.raises(WireError):
            decode_outputs(frames)
    with pytest.raises(WireError, match="type"):
        decode_outputs([code, msgspec.msgpack.encode([1, 2])])
    assert decode_outputs([code, payload]).request_ids == outputs()._replace(request_ids=["r0", "r1"]).request_ids
