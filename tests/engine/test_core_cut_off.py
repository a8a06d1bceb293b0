"""A client that does not read its outputs is cut off at a bound; nobody else notices."""

from itertools import islice
from typing import Any

import pytest
from core_bench import Bench
from fake_executor import expected_output, make_request, tiny_config

from vllm_obs.engine import core_proc
from vllm_obs.engine.core_cut_off import CUT_OFF, ROWS_A_MESSAGE, drain, failed_rows, last_words
from vllm_obs.engine.core_io import CoreAddress, Inbox
from vllm_obs.engine.core_proc import EngineCoreProc
from vllm_obs.engine.messages import EngineCoreOutputs, FinishReason, UtilityCall, UtilityResult
from vllm_obs.engine.wire import FrameEncoder, decode_outputs
from vllm_obs.telemetry.records import FrameDropped

MAX_MESSAGES = 8
CLIENTS = [("in0", "out0"), ("in1", "out1")]


class Loop:
    """The engine's main loop over two clients, of which the first never reads."""

    def __init__(self) -> None:
        self.bench = Bench(num_blocks=64, config=tiny_config(max_num_seqs=8, max_num_batched_tokens=64))
        self.inbox = Inbox()
        self.proc = EngineCoreProc(self.bench.core, CoreAddress(0, 0, 1, CLIENTS), self.inbox, self.bench.recorder)
        self.read: list[EngineCoreOutputs] = []

    def put(self, *messages: Any) -> None:
        for message in messages:
            self.inbox.put(message)

    def turn(self) -> None:
        """Take in what there is, run a step, and let the second client read."""
        self.proc._drain_inbox()
        for client_index, outputs in self.bench.core.step().items():
            self.proc._send(client_index, outputs)
        self.read += drain(self.proc.outboxes[1])

    def tokens_read(self, request_id: str) -> list[int]:
        """What the second client got of a sequence."""
        tokens: list[int] = []
        for outputs in self.read:
            token_ids = iter(outputs.new_token_ids)
            for name, number in zip(outputs.request_ids, outputs.num_new_tokens, strict=True):
                row = list(islice(token_ids, number))
                tokens += row if name == request_id else []
        return tokens


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(core_proc, "MAX_OUTBOX_MESSAGES", MAX_MESSAGES)
    return Loop()


def test_who_does_not_read_is_cut_off_and_the_other_served(loop: Loop) -> None:
    loop.put(make_request("deaf", [1, 2, 3], 50), make_request("deaf too", [4], 50))
    loop.put(make_request("hears", [1, 2, 3], 50, client_index=1))
    deaf = loop.proc.outboxes[0]
    lengths = []
    while loop.bench.core.has_work() or not loop.inbox.empty():
        loop.turn()
        lengths.append(deaf.qsize())
    assert max(lengths) == MAX_MESSAGES
    assert loop.tokens_read("hears") == expected_output([1, 2, 3], 50)
    told = [ending for outputs in drain(deaf) for ending in endings(outputs)]
    assert told[:2] == [("deaf", FinishReason.ERROR, CUT_OFF[0]), ("deaf too", FinishReason.ERROR, CUT_OFF[0])]
    assert {name for name, _, _ in told} == {"deaf", "deaf too"}
    assert loop.bench.core.scheduler.num_live == 0
    assert [record.reason for record in loop.bench.recorder.of(FrameDropped)] == ["unread"]  # type: ignore[union-attr]


def endings(outputs: EngineCoreOutputs) -> list[tuple[str, int, str]]:
    errors = {row: reason for row, reason, _ in outputs.errors}
    rows = enumerate(zip(outputs.request_ids, outputs.finish_reasons, strict=True))
    return [(name, reason, errors.get(row, "")) for row, (name, reason) in rows if reason >= 0]


def test_a_client_that_only_calls_and_never_reads_has_the_last_answers(loop: Loop) -> None:
    num_calls = 3 * MAX_MESSAGES
    for number in range(num_calls):
        loop.put(UtilityCall(0, 0, number, "ping", []))
        loop.proc._drain_inbox()
    answers = [outputs.utility for outputs in drain(loop.proc.outboxes[0])]
    assert MAX_MESSAGES // 2 < len(answers) <= MAX_MESSAGES
    numbers = range(num_calls - len(answers), num_calls)
    assert [answer and answer.call_id for answer in answers] == list(numbers)


def test_the_last_words_fit_the_wire_however_many_they_concern(loop: Loop) -> None:
    blank = loop.proc._no_rows(0)
    ids = [f"r{number}" for number in range(2 * ROWS_A_MESSAGE + 1)]
    lost = failed_rows(blank, ids[:10], CUT_OFF)
    answer = blank._replace(utility=UtilityResult(7, "pong", ""))
    messages = list(last_words([lost, answer], ids, blank, max_answers=4))
    assert [len(outputs.request_ids) for outputs in messages] == [ROWS_A_MESSAGE, ROWS_A_MESSAGE, 1, 0]
    assert messages[-1].utility == UtilityResult(7, "pong", "")
    for outputs in messages:
        decoded = decode_outputs(FrameEncoder().outputs(outputs))
        assert decoded.request_ids == outputs.request_ids
