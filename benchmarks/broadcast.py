"""Measures what it costs to tell every worker of a step, and to take the answer: shared memory beside pipes.

    .venv/bin/python benchmarks/broadcast.py --runs 5

A plan of decoding rows goes to readers in processes of their own, which sleep in between, as in a server. The
writer's cost is encoding it once and writing it (for pipes: once to each). A reader's latency begins before the
plan is encoded; it ends when the reader has the bytes, and when it has the plan. All readers share the
machine's cores, and wait for each other where these are fewer. The gather is one answer of as many tokens, from
the output rank. Microseconds: the median over runs of each run's percentile, and the range over runs.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cache
from typing import NamedTuple, cast

import numpy as np

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.executor.commands import Command, ExecuteModel, InitializeCache, Sampled, decode, encode
from vllm_obs.engine.executor.multiproc import Queues
from vllm_obs.engine.executor.plan_stream import PlanReader, PlanWriter
from vllm_obs.engine.executor.shm_queue import ShmQueueReader, ShmQueueWriter, join_frames, split_frames
from vllm_obs.engine.executor.shm_ring import QueueHandle
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan, WorkerMoments
from vllm_obs.engine.wire import FrameEncoder

NUM_READERS = (1, 2, 4, 8)
BLOCK_SIZE = 16
NO_BLOCKS: list[int] = []
PROMPT = np.arange(40, dtype=np.int32)
SAMPLING = SamplingSpec()
"""Of a row that comes."""
PAUSE_SECONDS = 0.004
"""Between two plans: readers have gone to sleep again."""
WAIT_SECONDS = 30.0
HEADINGS = (
    "queue, readers",
    "writer's CPU",
    "writer",
    "encode",
    "write",
    "writer p99",
    "read",
    "read p99",
    "decoded",
    "answer",
    "gather",
)
_LENGTH = struct.Struct("=Q")
_now = time.monotonic_ns


def step_plan(num_rows: int, step: int, num_changes: int = 0) -> StepPlan:
    """A step in which each row decodes one token and every sixteenth is given a block.

    `num_changes` rows have come in it, in the place of as many that have ended. As in the scheduler a row's id is
    one string, and rows without a block share one list.
    """
    ids = [request_id(number) for number in range(step * num_changes, step * num_changes + num_rows)]
    num_running = num_rows - num_changes
    return StepPlan(
        step=step,
        new_rows=[NewRow(new, PROMPT, len(PROMPT), SAMPLING, [1, 2, 3], 0) for new in ids[num_running:]],
        running_ids=ids[:num_running],
        running_new_blocks=[
            [row + step] if (row + step) % BLOCK_SIZE == 0 else NO_BLOCKS for row in range(num_running)
        ],
        running_num_computed_tokens=[300 + 7 * row + step for row in range(num_running)],
        running_last_token_ids=[-1] * num_running,
        num_scheduled_tokens=[len(PROMPT)] * num_changes + [1] * num_running,
        released_ids=[request_id(number) for number in range((step - 1) * num_changes, step * num_changes)],
    )


@cache
def request_id(number: int) -> str:
    """That of the `number`th row."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}-0"


def step_answer(plan: StepPlan) -> ModelRunnerOutput:
    """A token for each row."""
    moments = [WorkerMoments(0, *[_now()] * 5)]
    return ModelRunnerOutput(plan.step, plan.row_ids, list(range(plan.num_rows)), [], [], [], moments)


class PipesWriter:
    """The plain alternative: the message, after its length, into one pipe for each reader."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds

    def write(self, frames: Sequence[Buffer], timeout_seconds: float) -> None:
        """A pipe holds 64 KiB, more than a plan has."""
        body = join_frames(frames)
        body = _LENGTH.pack(len(body)) + body
        for fd in self._fds:
            os.write(fd, body)


class PipeReader:
    """The other end of one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, timeout_seconds: float) -> list[Buffer]:
        """The next message."""
        (num_left,) = _LENGTH.unpack(os.read(self._fd, _LENGTH.size))
        chunks = []
        while num_left:
            chunks.append(os.read(self._fd, num_left))
            num_left -= len(chunks[-1])
        return split_frames(b"".join(chunks))


Writer = ShmQueueWriter | PipesWriter
Reader = ShmQueueReader | PipeReader


class ReaderPart(NamedTuple):
    """What a reader's process is told: the kind of queue, its number, and the descriptors of plans and replies."""

    kind: str
    number: int
    plans: list[object]
    replies: list[object]

    def open_plans(self) -> Reader:
        """Where plans come from."""
        return PipeReader(cast(int, self.plans[self.number])) if self.kind == "pipe" else self._shm_plans()

    def open_replies(self) -> Writer:
        """Where the answer goes."""
        if self.kind == "pipe":
            return PipesWriter([cast(int, self.replies[0])])
        return ShmQueueWriter(_handle(self.replies))

    def _shm_plans(self) -> ShmQueueReader:
        return ShmQueueReader(_handle(self.plans), self.number)


def _handle(values: Sequence[object]) -> QueueHandle:
    memory_fd, event_fds, num_slots, slot_bytes, relays = values
    ends = [tuple(cast(list[int], fds)) for fds in (event_fds, relays)]
    return QueueHandle(cast(int, memory_fd), ends[0], cast(int, num_slots), cast(int, slot_bytes), ends[1])


def read_plans(part: ReaderPart) -> None:
    """A reader's process: take plans until one has no model to run; print what each took, as JSON."""
    plans, replies, encoder, heard = part.open_plans(), part.open_replies(), FrameEncoder(), PlanReader()
    taken: list[tuple[int, int, int]] = []
    print("ready", flush=True)
    while frames := plans.read(WAIT_SECONDS):
        read_at = _now()
        message = heard.heard(cast(Command, decode(frames)))
        if not isinstance(message, ExecuteModel):
            break
        decoded_at = _now()
        answered = 0
        if part.number == 0:
            answer = step_answer(message.plan)
            begun_at = _now()
            replies.write(encode(encoder, Sampled(message.call_id, answer)), WAIT_SECONDS)
            answered = _now() - begun_at
        taken.append((read_at - message.call_id, decoded_at - message.call_id, answered))
    print(json.dumps(taken), flush=True)


class Costs(NamedTuple):
    """What one run's plans took, in ns, one entry a plan (a reader's: one for each reader and plan)."""

    encoded: list[int]
    written: list[int]
    cpu: list[int]
    read: list[int]
    decoded: list[int]
    answered: list[int]
    gathered: list[int]


class Round:
    """The writer's side of one run."""

    def __init__(self, kind: str, num_readers: int, num_rows: int, num_changes: int) -> None:
        self._sizes = (num_rows, num_changes)
        self._encoder = FrameEncoder()
        self._told = PlanWriter()
        if kind == "pipe":
            pipes = [os.pipe() for _ in range(num_readers)]
            self._fds = [fd for pipe in pipes for fd in pipe]
            back = os.pipe()
            self._fds += back
            self._writer: Writer = PipesWriter([pipe[1] for pipe in pipes])
            self._replies: Reader = PipeReader(back[0])
            parts: tuple[list[object], list[object]] = ([pipe[0] for pipe in pipes], [back[1]])
        else:
            plans, (replies, *_) = Queues.create(range(num_readers), num_readers)
            self._fds = [*plans.fds, *replies.fds]
            self._writer = ShmQueueWriter(plans)
            self._replies = ShmQueueReader(replies)
            parts = (list(astuple(plans)), list(astuple(replies)))
        self._children = [self._spawn(ReaderPart(kind, index, *parts)) for index in range(num_readers)]

    def run(self, num_plans: int) -> Costs:
        """Send so many plans, end the readers and collect what they saw."""
        for child in self._children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        costs = Costs(*([] for _ in Costs._fields))
        for step in range(num_plans):
            time.sleep(PAUSE_SECONDS)
            self._send(step_plan(self._sizes[0], step, self._sizes[1]), costs)
            time.sleep(PAUSE_SECONDS)
            self._gather(costs)
        self._writer.write(encode(self._encoder, InitializeCache(1)), WAIT_SECONDS)
        for child in self._children:
            out, _ = child.communicate(timeout=WAIT_SECONDS)
            for read, decoded, answered in json.loads(out)[num_plans // 10 :]:
                costs.read.append(read)
                costs.decoded.append(decoded)
                if answered:
                    costs.answered.append(answered)
        for fd in self._fds:
            os.close(fd)
        return costs

    def _send(self, plan: StepPlan, costs: Costs) -> None:
        cpu, begun_at = time.thread_time_ns(), _now()
        frames = encode(self._encoder, self._told.told(ExecuteModel(begun_at, plan)))
        encoded_at = _now()
        self._writer.write(frames, WAIT_SECONDS)
        written_at = _now()
        costs.cpu.append(time.thread_time_ns() - cpu)
        costs.encoded.append(encoded_at - begun_at)
        costs.written.append(written_at - encoded_at)

    def _gather(self, costs: Costs) -> None:
        begun_at = _now()
        frames = self._replies.read(WAIT_SECONDS)
        assert frames is not None
        decode(frames)
        costs.gathered.append(_now() - begun_at)

    def _spawn(self, part: ReaderPart) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--reader", json.dumps(part)]
        return subprocess.Popen(command, pass_fds=self._fds, stdout=subprocess.PIPE, text=True)


def figure(runs: Sequence[Costs], of: Callable[[Costs], list[int]], percent: int) -> str:
    """The median over runs of that percentile, and the range."""
    values = sorted(statistics.quantiles(of(run), n=100)[percent - 1] / 1e3 for run in runs)
    return f"{statistics.median(values):.0f} ({values[0]:.0f}–{values[-1]:.0f})"


def plan_bytes(num_rows: int, num_changes: int) -> tuple[int, int]:
    """How long the first plan's message is, and that of one that follows it."""
    told, encoder = PlanWriter(), FrameEncoder()
    plans = [told.told(ExecuteModel(step, step_plan(num_rows, step, num_changes))) for step in (1, 2)]
    first, following = (len(join_frames(encode(encoder, plan))) for plan in plans)
    return first, following


def total(run: Costs) -> list[int]:
    """The writer's whole cost of each plan."""
    return [encoded + written for encoded, written in zip(run.encoded, run.written, strict=True)]


def line(kind: str, num_readers: int, runs: Sequence[Costs]) -> str:
    """A row of the table."""
    cells = [
        f"{kind}, {num_readers}",
        figure(runs, lambda run: run.cpu, 50),
        figure(runs, total, 50),
        figure(runs, lambda run: run.encoded, 50),
        figure(runs, lambda run: run.written, 50),
        figure(runs, total, 99),
        figure(runs, lambda run: run.read, 50),
        figure(runs, lambda run: run.read, 99),
        figure(runs, lambda run: run.decoded, 50),
        figure(runs, lambda run: run.answered, 50),
        figure(runs, lambda run: run.gathered, 50),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--changes", type=int, default=0, help="rows that end, and that come, in each step")
    parser.add_argument("--plans", type=int, default=400, help="in a run (default 400)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--readers", type=int, nargs="+", default=NUM_READERS)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        read_plans(ReaderPart(*json.loads(options.reader)))
        return
    first, following = plan_bytes(options.rows, options.changes)
    print(f"{options.rows} rows, {first} bytes the first plan, {following} each further one\n")
    print(f"| {' | '.join(HEADINGS)} |\n{'| --- ' * len(HEADINGS)}|")
    for num_readers in options.readers:
        for kind in ("shared memory", "pipe"):
            runs = [
                Round(kind, num_readers, options.rows, options.changes).run(options.plans)
                for _ in range(options.runs)
            ]
            print(line(kind, num_readers, runs), flush=True)


if __name__ == "__main__":
    main()
