"""A run without processes: its API server's and its engine's rings, written as if it had served."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import (
    BlocksChanged,
    EngineDescribed,
    HttpRequestEnded,
    OutputsTaken,
    ProcessPhase,
    ProcessReady,
    ProcessStarted,
    RequestEnded,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)

MS = 1_000_000
NUM_BLOCKS = 256
BLOCK_SIZE = 16
MODEL = "tiny"


@dataclass
class ScriptedSequence:
    """A sequence as the script has it."""

    submitted: RequestSubmitted
    taken_at: int
    num_computed: int = 0
    num_output: int = 0
    first_token_at: int = 0
    last_token_at: int = 0
    blocks: list[int] = field(default_factory=list)


class ScriptedRun:
    """Time is the script's own, from `begin` on (default: a minute ago), and moves with what is done.

    A step takes 10 ms: 1 schedule, 6 execute, 2 sample, 1 update.
    """

    def __init__(self, run_dir: Path, begin: int | None = None, engine_bytes: int = 1 << 20) -> None:
        self.now = begin if begin is not None else time.monotonic_ns() - 60_000 * MS
        self.api = FlightRecorder(run_dir / "APIServer_0.ring", "APIServer_0", 1 << 20)
        self.core = FlightRecorder(run_dir / "EngineCore_DP0.ring", "EngineCore_DP0", engine_bytes)
        self.live: dict[str, ScriptedSequence] = {}
        self.waiting: list[str] = []
        self.step_number = 0
        self._free = list(range(NUM_BLOCKS))

    def __enter__(self) -> "ScriptedRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Both processes end in order."""
        self.api.close()
        self.core.close()

    def start(self) -> None:
        """Both processes start and are ready after 100 ms; the engine describes itself."""
        pid, begin = os.getpid(), self.now
        wall_at = time.time_ns() - time.monotonic_ns() + begin
        for recorder, role in ((self.api, "APIServer_0"), (self.core, "EngineCore_DP0")):
            recorder.record(ProcessStarted(role, pid, begin, wall_at))
            recorder.record(ProcessPhase(role, "imports", begin, begin + 40 * MS))
            recorder.record(ProcessPhase(role, "load", begin + 40 * MS, begin + 100 * MS))
            recorder.record(ProcessReady(role, pid, begin + 100 * MS))
            recorder.doing(Activity.WAITING)
        self.pass_time(100)
        self.core.record(
            EngineDescribed(
                0, 0, [MODEL], "float32", "cpu", 2048, 8, 512, NUM_BLOCKS, BLOCK_SIZE, "float32", 1 << 20, 0.9,
                True, 0, 1, 1 << 20, 1000, 64, self.now,
            )
        )  # fmt: skip

    def catch_up(self) -> None:
        """What comes next happens now: to an Observer that reads it meanwhile nothing unread is overdue."""
        self.now = max(self.now, time.monotonic_ns())

    def pass_time(self, length_ms: float) -> int:
        """Let time pass; the new now."""
        self.now += int(length_ms * MS)
        return self.now

    def submit(self, name: str, num_prompt: int = 20, label: str = "", max_tokens: int = 3) -> None:
        """The HTTP request `name` sends its sequence `name-0-0`: 1 ms for each stage of the API server."""
        received_at = self.now
        moments = [received_at + index * MS for index in range(5)]
        submitted = RequestSubmitted(
            f"{name}-0-0", 0, name, label, 0, 1, 1, "chat", True, MODEL, "", *moments, num_prompt, max_tokens, 0,
            1.0, 1.0, 0,
        )  # fmt: skip
        self.api.record(submitted)
        taken_at = self.pass_time(5)
        self.core.record(
            RequestTaken(submitted.request_id, 0, submitted.submitted_at, taken_at, num_prompt, max_tokens, 0)
        )
        self.live[name] = ScriptedSequence(submitted, taken_at)
        self.waiting.append(name)

    def step(self, *names: str, head_reason: str = "") -> int:
        """One step runs these: a prompt whole, or one more token of what runs. Each gets a token. Its number."""
        self.step_number += 1
        begun_at = self.now
        admitted = [name for name in names if name in self.waiting]
        self.waiting = [name for name in self.waiting if name not in admitted]
        rows = [self.live[name] for name in names]
        num_scheduled = [1 if row.num_computed else row.submitted.num_prompt_tokens for row in rows]
        new_blocks = [self._grow(row, number) for row, number in zip(rows, num_scheduled, strict=True)]
        ids = [row.submitted.request_id for row in rows]
        admitted_ids = [self.live[name].submitted.request_id for name in admitted]
        self.core.begin_step(self.step_number)
        self.core.record(
            StepPlanned(
                self.step_number, begun_at, begun_at + MS, ids, num_scheduled, [row.num_computed for row in rows],
                [len(blocks) for blocks in new_blocks], admitted_ids,
                [0] * len(admitted), [], [], [], [], head_reason if self.waiting else "",
                len(self.live) - len(self.waiting), len(self.waiting), len(self._free), 0,
                NUM_BLOCKS - len(self._free),
            )
        )  # fmt: skip
        changed = [(row_id, blocks) for row_id, blocks in zip(ids, new_blocks, strict=True) if blocks]
        if changed:
            changed_ids, allocated = [row_id for row_id, _ in changed], [blocks for _, blocks in changed]
            empty: list[list[int]] = [[] for _ in changed]
            self.core.record(BlocksChanged(self.step_number, changed_ids, allocated, empty, [0] * len(changed)))
        self._answer(begun_at, ids, rows, num_scheduled)
        return self.step_number

    def finish(self, name: str, reason: str = "length", error: str = "", status: int = 200) -> None:
        """The sequence ends, gives its blocks back and its reply is delivered: 3 ms."""
        row = self.live.pop(name)
        if name in self.waiting:
            self.waiting.remove(name)
        submitted, request_id = row.submitted, row.submitted.request_id
        if row.blocks:
            self.core.record(BlocksChanged(self.step_number, [request_id], [[]], [row.blocks], [0]))
            self._free += row.blocks
        self.core.record(RequestReleased(request_id, reason, self.now, row.num_output, row.num_computed, 0, 0))
        taken_at = self.pass_time(1)
        ended_at = self.pass_time(1)
        self.api.record(
            RequestEnded(
                request_id, 0, reason, error, submitted.num_prompt_tokens, row.num_output, 0, row.first_token_at,
                row.last_token_at, taken_at if row.num_output else 0, ended_at,
            )
        )  # fmt: skip
        delivered_at = self.pass_time(1)
        self.api.record(
            HttpRequestEnded(
                submitted.http_id, 0, submitted.external_id, "/v1/chat/completions", "POST", status, error, "",
                submitted.received_at, row.first_token_at, delivered_at, 100, 200,
            )
        )  # fmt: skip

    def refuse(self, name: str, status: int = 400, reason: str = "invalid_value") -> None:
        """An HTTP request that came to nothing."""
        received_at, ended_at = self.now, self.pass_time(2)
        self.api.record(
            HttpRequestEnded(
                name,
                0,
                "",
                "/v1/chat/completions",
                "POST",
                status,
                reason,
                "",
                received_at,
                ended_at,
                ended_at,
                9,
                9,
            )
        )

    def serve(self, name: str, num_prompt: int = 20, num_output: int = 3, label: str = "") -> None:
        """A request from its first byte to its last, alone."""
        self.submit(name, num_prompt, label, num_output)
        for _ in range(num_output):
            self.step(name)
        self.finish(name)

    def _grow(self, row: ScriptedSequence, num_tokens: int) -> list[int]:
        num_blocks = -(-(row.num_computed + num_tokens) // BLOCK_SIZE)
        grown = [self._free.pop(0) for _ in range(num_blocks - len(row.blocks))]
        row.blocks += grown
        return grown

    def _answer(
        self, begun_at: int, ids: list[str], rows: list[ScriptedSequence], num_scheduled: list[int]
    ) -> None:
        number, executed_at, sampled_at = self.step_number, begun_at + 7 * MS, begun_at + 9 * MS
        updated_at = self.pass_time(10)
        moments = (begun_at + MS, begun_at + 2 * MS, executed_at, executed_at, sampled_at)
        self.core.record(WorkerStep(number, 0, *moments, sum(num_scheduled), len(rows)))
        self.core.record(StepAnswered(number, executed_at, sampled_at, updated_at, ids, [1] * len(rows), 0))
        for row, num_tokens in zip(rows, num_scheduled, strict=True):
            row.num_computed += num_tokens
            row.num_output += 1
            row.first_token_at = row.first_token_at or sampled_at
            row.last_token_at = sampled_at
        self.core.heartbeat(self.now)
        self.api.record(
            OutputsTaken(number, 0, 0, sampled_at, updated_at, updated_at + MS // 2, updated_at + MS, len(rows))
        )
