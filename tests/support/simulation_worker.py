"""The simulation's executor: the real InputBatch over a paged cache of hashes, and planted faults."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any, NamedTuple

import numpy as np
from awaited_calls import AwaitedCalls
from fake_executor import FakeExecutor, done, logprobs_of
from simulation_model import NUM_TOKENS, beginning, cells_of, chosen, hashed
from simulation_world import World

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor.late_answer import LateAnswer
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.worker.input_batch import UNREAD, InputBatch

BROKEN_CELL = -1
"""What a row without numbers leaves in the cache: whoever reads it has none either."""
Excuse = Callable[[str, str], None]
"""Told that a sequence may end with an error, and with which reason."""


class OnDevice(NamedTuple):
    """Tokens that were sampled at an epoch of the batch, and that the host has not read."""

    epoch: int
    request_ids: list[str]
    tokens: list[int]


class SimulatedExecutor(FakeExecutor):
    """Answers at once. A token comes from what the cache holds at the row's blocks, so that mixing up shows.

    Where the core is ahead the tokens stay on a device, as a ModelRunner's do, until somebody asks for them.
    """

    def __init__(self, world: World, draw: Random, excuse: Excuse) -> None:
        super().__init__(world.num_blocks, world.block_size)
        self._world = world
        self._draw = draw
        self._excuse = excuse
        self._calls = AwaitedCalls() if world.num_stages > 1 else None
        self._under_way: deque[StepPlan] = deque()
        self._unread: deque[OnDevice] = deque()
        self._batch = InputBatch(world.max_num_seqs, world.max_model_len, world.block_size, NUM_TOKENS)
        self._plan: StepPlan | None = None
        self._placed: list[tuple[int, int]] = []
        self._computed_from: dict[str, int] = {}
        self.reached: Counter[str] = Counter()
        self.failed_steps: set[int] = set()

    @property
    def row_ids(self) -> set[str]:
        """The sequences the worker holds."""
        return set(self._batch.request_ids)

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Bring the batch up to the plan and write its cells."""
        self._under_way.append(plan)
        return self._call(lambda: self._run(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """A token for each row whose last known token was computed."""
        if not self._world.is_ahead:
            return self._call(lambda: self._answer(masks))
        launched: Future[ModelRunnerOutput] = done(lambda: self._answer(masks))
        if launched.exception():
            return launched
        epoch = self._batch.epoch
        return LateAnswer(lambda: self._fetch(epoch, launched.result()))

    def _fetch(self, epoch: int, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """The answer of a step; those before it are read first."""
        self.reached["held for a grammar"] += self._plan is not None
        while self._unread and self._unread[0].epoch <= epoch:
            self._read()
        return output

    def _read(self) -> None:
        self._batch.note_read(*self._unread.popleft())

    def _call(self, act: Callable[[], Any]) -> Future[Any]:
        """At once, or when an answer is waited for: what a step in flight was to give may be asked by nobody."""
        return done(act) if self._calls is None else self._calls.call(act)

    def _run(self, plan: StepPlan) -> None:
        self._plan = None
        self._under_way.popleft()
        self.reached["several steps in flight"] += bool(self._under_way)
        self._check(plan)
        self._break_off(plan, "before")
        while len(self._unread) > 1:
            self._read()
        self.reached["a step begun ahead"] += bool(self._unread and plan.num_rows)
        rows = self._batch.update(plan).tolist()
        self._computed_from |= {new.request_id: new.num_computed_tokens for new in plan.new_rows}
        self._break_off(plan, "after")
        self._placed = list(zip(rows, plan.num_scheduled_tokens, strict=True))
        for row, num_tokens in self._placed:
            self._compute(row, num_tokens)
        self._plan = plan

    def _check(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self._world.budget, f"{plan.num_tokens} tokens planned"
        assert plan.num_rows <= self._world.max_num_seqs, f"{plan.num_rows} rows planned"
        assert len(set(plan.row_ids)) == plan.num_rows, "a sequence is planned once"
        assert all(plan.num_scheduled_tokens), "a row in a plan computes something"
        if any(row.num_computed_tokens for row in plan.new_rows):
            self.reached["prefix hit"] += 1

    def _break_off(self, plan: StepPlan, when: str) -> None:
        """Fail the step, if the seed says so: all that it and those behind it run may end with an error."""
        if not plan.num_rows or self._draw.random() >= self._world.faults.failing / 3:
            return
        for each in (plan, *self._under_way):
            for request_id in each.row_ids:
                self._excuse(request_id, "internal_error")
        self.failed_steps.add(plan.step)
        self.reached[f"failed step ({when})"] += 1
        raise RuntimeError("a planted failure of a step")

    def _compute(self, row: int, num_tokens: int) -> None:
        batch = self._batch
        begin = int(batch.num_computed_tokens[row])
        positions = np.arange(begin, begin + num_tokens)
        assert positions[-1] < batch.num_tokens[row], "only known tokens are computed"
        assert positions[-1] < batch.num_blocks[row] * self.block_size, "the blocks cover the step"
        tokens = batch.token_ids[row, positions].astype(np.int64)
        if UNREAD in tokens:
            fed = self._unread[-1].tokens[batch.sampled_places[row]]
            tokens[tokens == UNREAD] = max(fed, 0)
        cells = cells_of(tokens, positions)
        if self._world.faults.nan and BROKEN_CELL in self._cells[self._places(row, np.arange(begin))]:
            cells = np.full_like(cells, BROKEN_CELL)
        self._cells[self._places(row, positions)] = cells

    def _places(self, row: int, positions: Any) -> Any:
        block_size = self.block_size
        return self._batch.block_tables[row, positions // block_size] * block_size + positions % block_size

    def _answer(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        plan, batch = self._plan, self._batch
        assert plan is not None, "sampling follows executing"
        if self._draw.random() < self._world.faults.dead:
            self.reached["dead worker"] += 1
            raise EngineDeadError("a planted death of a rank")
        self._break_off(plan, "in sampling")
        output = ModelRunnerOutput(plan.step, [], [], [], [], [], [], [])
        words = {} if masks is None else dict(zip(masks.request_ids, masks.bitmask, strict=True))
        rows, tokens = [], []
        for row, num_tokens in self._placed:
            request_id = batch.request_ids[row]
            self._add_prompt_logprobs_of(output, row, num_tokens)
            if batch.num_computed_tokens[row] + num_tokens < batch.num_tokens[row]:
                self.reached["chunked prefill"] += 1
                continue
            token = self._sampled(output, row, num_tokens, words.get(request_id))
            rows.append(row)
            tokens.append(-1 if token is None else token)
        if self._world.is_ahead:
            self._plan = None
            if rows:
                batch.note_unread(np.array(rows, np.int64))
                self._unread.append(OnDevice(batch.epoch, [batch.request_ids[row] for row in rows], tokens))
        else:
            batch.note_sampled(np.array(rows, np.int64), tokens)
        return output

    def _sampled(self, output: ModelRunnerOutput, row: int, num_tokens: int, words: Any) -> int | None:
        """The row's token, put into the answer; None where it has none."""
        batch, faults = self._batch, self._world.faults
        request_id = batch.request_ids[row]
        if self._draw.random() < faults.nan:
            self._break_numbers(row, num_tokens)
        cells = self._cells[self._places(row, np.arange(batch.num_tokens[row]))]
        if BROKEN_CELL in cells:
            output.failed.append((request_id, "invalid_logits", "The logits are not numbers."))
            return None
        if self._draw.random() < faults.silent:
            self._excuse(request_id, "internal_error")
            self.reached["no answer"] += 1
            return None
        columns = batch.sampling
        before = beginning(int(columns.seeds[row]), int(columns.sequence_indices[row]))
        token = chosen(hashed(cells, before), words)
        output.request_ids.append(request_id)
        output.token_ids.append(token)
        spec = columns.specs[row]
        assert spec is not None, "a row in use has parameters"
        if spec.logprobs is not None:
            output.logprobs.append((request_id, logprobs_of([token])))
        return token

    def _break_numbers(self, row: int, num_tokens: int) -> None:
        """Nothing computed of the row is a number, which shows only now; who shares its blocks reads it too.

        Only the row itself may fail with it.
        """
        batch, request_id = self._batch, self._batch.request_ids[row]
        end = int(batch.num_computed_tokens[row]) + num_tokens
        places = self._places(row, np.arange(self._computed_from[request_id], end))
        self._cells[places] = BROKEN_CELL
        self._excuse(request_id, "invalid_logits")
        self.reached["NaN row"] += 1
        blocks = set((places // self.block_size).tolist())
        for other in range(batch.num_rows):
            table = batch.block_tables[other, : batch.num_blocks[other]].tolist()
            self.reached["NaN shared"] += other != row and not blocks.isdisjoint(table)

    def _add_prompt_logprobs_of(self, output: ModelRunnerOutput, row: int, num_tokens: int) -> None:
        batch = self._batch
        if batch.num_prompt_logprobs[row] < 0:
            return
        begin = int(batch.num_computed_tokens[row])
        end = min(begin + num_tokens, int(batch.num_prompt_tokens[row]) - 1)
        if begin < end:
            tokens = batch.token_ids[row, begin + 1 : end + 1].tolist()
            output.prompt_logprobs.append((batch.request_ids[row], logprobs_of(tokens)))
