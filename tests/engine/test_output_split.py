"""Outputs too large for one message are sent in several; a row that never fits ends its sequence alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from wire_samples import logprobs, outputs, plain

from vllm_obs.engine import wire
from vllm_obs.engine.messages import EngineCoreOutputs, FinishReason, UtilityResult
from vllm_obs.engine.output_split import TOO_LARGE, SentRows
from vllm_obs.engine.wire import FrameEncoder, decode_outputs


@pytest.fixture(autouse=True)
def narrow_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wire that takes arrays of 10,000 bytes."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10_000)


def rows(sizes: Sequence[int]) -> EngineCoreOutputs:
    """A row for each size, the positions of its log-probabilities."""
    num_rows = len(sizes)
    return outputs(
        request_ids=[f"r{row}" for row in range(num_rows)],
        num_new_tokens=[row % 3 for row in range(num_rows)],
        new_token_ids=list(range(sum(row % 3 for row in range(num_rows)))),
        finish_reasons=[-1] * num_rows,
        stop_token_ids=[-1] * num_rows,
        num_cached_tokens=list(range(num_rows)),
        logprobs=[(row, logprobs(1)) for row in range(num_rows)],
        prompt_logprobs=[(row, logprobs(size)) for row, size in enumerate(sizes)],
        errors=[(num_rows - 1, "internal_error", "why")],
        timings=[(row, row, row + 1) for row in range(num_rows)],
        detours=[],
        pooled=[(0, np.ones(3, np.float32))],
        utility=None,
    )


def decoded(sent: SentRows) -> list[EngineCoreOutputs]:
    return [decode_outputs(frames) for frames in sent.messages]


def test_what_fits_is_one_message() -> None:
    whole = rows([10, 20, 30])
    assert list(map(plain, decoded(SentRows(FrameEncoder(), whole)))) == [plain(whole)]


def test_a_row_that_never_fits_is_told_of_an_error_and_the_others_get_theirs() -> None:
    whole = rows([10, 20, 900, 30, 40])
    sent = SentRows(FrameEncoder(), whole)
    assert sent.failed_ids == ["r2"]
    messages = decoded(sent)
    assert [name for message in messages for name in message.request_ids] == whole.request_ids
    assert [reason for message in messages for reason in message.finish_reasons] == [
        -1,
        -1,
        FinishReason.ERROR,
        -1,
        -1,
    ]
    assert [token for message in messages for token in message.new_token_ids] == [0, 3]
    told = {message.request_ids[row]: reason for message in messages for row, reason, _ in message.errors}
    assert told == {"r2": TOO_LARGE[0], "r4": "internal_error"}
    asked = {
        message.request_ids[row]: len(part.ranks) for message in messages for row, part in message.prompt_logprobs
    }
    assert asked == {"r0": 10, "r1": 20, "r3": 30, "r4": 40}
    timings = {message.request_ids[row]: times for message in messages for row, *times in message.timings}
    assert timings == {f"r{row}": [row, row + 1] for row in (0, 1, 3, 4)}


def test_an_answer_that_cannot_be_sent_is_an_error_of_its_call() -> None:
    whole = rows([10])._replace(utility=UtilityResult(7, ["x" * 900_000] * 10, ""))
    rest, refusal = decoded(SentRows(FrameEncoder(), whole))
    assert plain(rest) == plain(whole._replace(utility=None))
    assert refusal.request_ids == []
    assert refusal.utility is not None
    assert (refusal.utility.call_id, refusal.utility.value) == (7, None)
    assert "the answer cannot be sent: size" in refusal.utility.error
