"""Plans as a stream of differences: whoever has heard all gets each plan whole, and nobody gets another."""

import random
import sys
from typing import Any

import pytest
from fake_executor import make_request
from wire_samples import plain

from vllm_obs.engine.codec_columns import pack_ints
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.executor import commands
from vllm_obs.engine.executor.commands import ExecuteModel, ExecuteNext, RowChanges, SampleTokens
from vllm_obs.engine.executor.plan_columns import pack_columns, unpack_columns
from vllm_obs.engine.executor.plan_stream import NUM_PLANS_KEPT, PlanReader, PlanWriter
from vllm_obs.engine.executor.shm_queue import join_frames, split_frames
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.wire import FrameEncoder


class Line:
    """A writer and what came of each of its commands on the wire."""

    def __init__(self) -> None:
        self.writer, self.encoder = PlanWriter(), FrameEncoder()
        self.num_calls = 0

    def send(self, plan: StepPlan) -> bytes:
        self.num_calls += 1
        return join_frames(commands.encode(self.encoder, self.writer.told(ExecuteModel(self.num_calls, plan))))


def taken(body: bytes) -> Any:
    return commands.decode(split_frames(body))


def new_row(request_id: str) -> NewRow:
    message = make_request(request_id, [1, 2, 3])
    return NewRow(request_id, message.prompt_token_ids, 3, message.sampling, [0], 0)


def decode_plan(step: int, ids: list[str], **changes: Any) -> StepPlan:
    """A token for each row; every fourth gets a block."""
    num = len(ids)
    blocks = [[row, step] if (row + step) % 4 == 0 else [] for row in range(num)]
    computed = [100 + 3 * row + step for row in range(num)]
    return StepPlan(step, [], ids, blocks, computed, [-1] * num, [1] * num, [])._replace(**changes)


@pytest.mark.parametrize("num_stages", [1, 2, 5, NUM_PLANS_KEPT + 3])
@pytest.mark.parametrize("seed", range(3))
def test_whoever_has_heard_all_plans_gets_each_as_it_was(seed: int, num_stages: int) -> None:
    """Rows come, end, are preempted and change places; a pipeline's plans have other rows in turn."""
    draw, line, reader = random.Random(seed), Line(), PlanReader()
    rows: list[list[str]] = [[] for _ in range(num_stages)]
    num_shorter = num_ids = 0
    for step in range(300):
        running = rows[step % num_stages]
        gone = [row for row in running if draw.random() < 0.05]
        running = [row for row in running if row not in gone]
        if draw.random() < 0.05:
            draw.shuffle(running)
        admitted = [f"row-{num_ids + number}" for number in range(draw.choice([0, 0, 0, 1, 4]))]
        num_ids += len(admitted)
        plan = decode_plan(step, list(running), new_rows=[new_row(row) for row in admitted], released_ids=gone)
        plan = plan._replace(
            num_scheduled_tokens=[3] * len(admitted) + [draw.choice([1, 1, 2**20]) for _ in running],
            running_last_token_ids=[draw.choice([-1, 7, 2**40]) for _ in running],
        )
        command = taken(line.send(plan))
        num_shorter += isinstance(command, ExecuteNext)
        assert plain(reader.heard(command)) == plain(ExecuteModel(line.num_calls, plan))
        rows[step % num_stages] = running + admitted
    assert (num_shorter > 200) == (num_stages <= NUM_PLANS_KEPT)


def test_rows_that_stay_do_not_travel() -> None:
    line, ids = Line(), [f"{row:034x}" for row in range(256)]
    whole = line.send(decode_plan(1, list(ids)))
    again = line.send(decode_plan(2, list(ids)))
    one_less = line.send(decode_plan(3, ids[:99] + ids[100:]))
    one_more = line.send(decode_plan(4, [*ids[:99], *ids[100:], "x" * 34]))
    assert len(whole) > 256 * 34 > 4 * len(again)
    assert [body.count(b"0" * 30) for body in (again, one_less, one_more)] == [0, 0, 0]
    assert [b"x" * 34 in body for body in (one_less, one_more)] == [False, True]


def test_rows_admitted_with_a_plan_are_those_of_the_next() -> None:
    line = Line()
    line.send(decode_plan(1, ["a", "b"], new_rows=[new_row("c")], num_scheduled_tokens=[3, 1, 1]))
    command = taken(line.send(decode_plan(2, ["b", "c"])))
    assert isinstance(command, ExecuteNext)
    assert command.changes == RowChanges([0], [], [], [])


def test_a_reader_that_comes_later_refuses_a_difference_and_takes_a_whole_plan() -> None:
    line, late = Line(), PlanReader()
    line.send(decode_plan(1, ["a", "b"]))
    with pytest.raises(WireError, match="call 2 is told by call 1, which is not here"):
        late.heard(taken(line.send(decode_plan(2, ["a", "b"]))))
    line.writer.forget()
    for step in (3, 4):
        plan = decode_plan(step, ["a", "b"])
        assert late.heard(taken(line.send(plan))) == ExecuteModel(line.num_calls, plan)


def test_after_a_command_that_was_not_sent_a_plan_is_whole() -> None:
    line = Line()
    line.send(decode_plan(1, ["a"]))
    line.writer.forget()
    assert isinstance(taken(line.send(decode_plan(2, ["a"]))), ExecuteModel)
    assert isinstance(taken(line.send(decode_plan(3, ["a"]))), ExecuteNext)


def test_other_commands_pass() -> None:
    assert PlanReader().heard(SampleTokens(3, None)) == SampleTokens(3, None)


def pack_blocks(*values: int) -> bytes:
    """Columns of two rows that say this of their blocks."""
    data, packed = columns(running_new_blocks=[[], []]), pack_ints(values)
    return data[:12] + len(packed).to_bytes(4, sys.byteorder) + data[16:-1] + packed


def columns(**changes: Any) -> bytes:
    """Those of two rows."""
    return pack_columns(StepPlan(5, [], [], [[], [4]], [8, 9], [7, 7], [7, 7], [])._replace(**changes))


GOOD_COLUMNS = columns()
GOOD = ExecuteNext(2, 1, 5, GOOD_COLUMNS, RowChanges([0], ["c"], [], []))


@pytest.mark.parametrize(
    "wrong",
    [
        {"changes": RowChanges([2], ["c"], [], [])},
        {"changes": RowChanges([-1], ["c"], [], [])},
        {"changes": RowChanges([0, 0], ["c"], [], [])},
        {"changes": RowChanges([0], [], [], [])},
        {"columns": b""},
        {"columns": GOOD_COLUMNS[:-1]},
        {"columns": GOOD_COLUMNS + b"x"},
        {"columns": columns(running_new_blocks=[[], [], [4]])},
        {"columns": columns(running_num_computed_tokens=[8, 9, 10])},
        {"columns": columns(running_last_token_ids=[1, 2, 3])},
        {"columns": columns(num_scheduled_tokens=[1, 2, 3])},
        {"columns": pack_blocks()},
        {"columns": pack_blocks(-1)},
        {"columns": pack_blocks(1)},
        {"columns": pack_blocks(2, 0, 1, 4)},
        {"columns": pack_blocks(2, 0, 0, 4, 5)},
        {"columns": pack_blocks(1, 2, 4)},
        {"columns": pack_blocks(1, -1, 4)},
        {"columns": pack_blocks(1, 1, 2, 4)},
        {"columns": pack_blocks(1, 1, 0, 4)},
        {"columns": pack_blocks(1, 1, -1, 4, 5)},
        {"columns": pack_blocks(0, 7)},
    ],
    ids=str,
)
def test_a_difference_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    reader = PlanReader()
    reader.heard(ExecuteModel(1, decode_plan(4, ["a", "b"])))
    with pytest.raises(WireError):
        reader.heard(GOOD._replace(**wrong))
    plan = StepPlan(5, [], ["b", "c"], [[], [4]], [8, 9], [7, 7], [7, 7], [])
    assert reader.heard(GOOD) == ExecuteModel(2, plan)


@pytest.mark.parametrize("values", [[], [0], [5, 5, 5], [5, 6, 5], [-1] * 300, [2**62] * 2, [2**62, 1]])
def test_columns_come_back_as_they_were(values: list[int]) -> None:
    num = len(values)
    blocks = [[number] * (number % 3) for number in range(num)]
    plan = StepPlan(1, [], [], blocks, values, values[::-1], [9, *values], [])
    assert unpack_columns(pack_columns(plan), num, 1 + num) == (blocks, values, values[::-1], [9, *values])
