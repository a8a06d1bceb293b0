"""An executor without a model, for tests of the scheduler and the core: its next token depends on what its paged
cache really holds, so a wrong block, a lost token or a stale row changes what comes out."""

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.config import (
    CacheConfig,
    ModelArchitecture,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.messages import EngineCoreRequest, Logprobs, SamplingSpec
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder

VOCAB_SIZE = 1000

_ARCHITECTURE = ModelArchitecture(
    name="LlamaForCausalLM",
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)


def tiny_config(
    max_model_len: int = 64, block_size: int = 4, enable_prefix_caching: bool = True, **scheduler: Any
) -> VllmConfig:
    """A configuration small enough to reason about; `scheduler` are fields of SchedulerConfig."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 16, **scheduler}
    return VllmConfig(
        model=ModelConfig(
            model="fake",
            path="",
            source="dummy",
            tokenizer="",
            served_model_names=("fake",),
            architecture=_ARCHITECTURE,
            dtype="float32",
            max_model_len=max_model_len,
        ),
        cache=CacheConfig(block_size=block_size, enable_prefix_caching=enable_prefix_caching),
        scheduler=SchedulerConfig(**limits),
        parallel=ParallelConfig(),
        observability=ObservabilityConfig(),
    )


def make_request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    sampling: SamplingSpec | None = None,
    **fields: Any,
) -> EngineCoreRequest:
    """An ADD of client 0; `fields` are fields of EngineCoreRequest."""
    message = EngineCoreRequest(
        request_id=request_id,
        client_index=0,
        generation=0,
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        sampling=sampling or SamplingSpec(max_tokens=max_tokens),
        priority=0,
        cache_salt=None,
        submitted_at=1,
    )
    return message._replace(**fields)


def next_token(token_ids: Sequence[int]) -> int:
    """The token that follows a sequence in this fake model."""
    return _digest(_cell(np.array(token_ids, dtype=np.int64), np.arange(len(token_ids))))


def expected_output(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the fake model generates after a prompt."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def _cell(token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return token_ids * 65_536 + positions + 1


def _digest(cells: npt.NDArray[np.int64]) -> int:
    return zlib.crc32(cells.tobytes()) % VOCAB_SIZE


@dataclass
class _Row:
    """What a worker holds of one sequence."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingSpec
    block_ids: list[int]
    num_computed_tokens: int
    pending: int = -1


@dataclass
class FakeExecutor:
    """Holds every plan to its contract and answers it at once.

    `before_execute` and `before_sample` may raise; ids in `failing` are answered as failed rows, ids in
    `silent` not at all. `failure` is the reason and the words of a failed row.
    """

    num_blocks: int
    block_size: int = 4
    before_execute: Callable[[StepPlan], None] = lambda plan: None
    before_sample: Callable[[], None] = lambda: None
    failing: set[str] = field(default_factory=set)
    failure: tuple[str, str] = ("invalid_logits", "The logits are not numbers.")
    silent: set[str] = field(default_factory=set)
    plans: list[StepPlan] = field(default_factory=list)
    profiles: list[ProfileOrder | None] = field(default_factory=list)
    is_shut_down: bool = False

    def __post_init__(self) -> None:
        self._cells = np.zeros(self.num_blocks * self.block_size, dtype=np.int64)
        self._rows: dict[str, _Row] = {}

    @property
    def row_ids(self) -> set[str]:
        """The sequences the worker holds."""
        return set(self._rows)

    def initialize(self) -> KVCapacity:
        """Nothing to load."""
        return KVCapacity(self.num_blocks, 1, self.num_blocks)

    def startup_phases(self) -> list[tuple[str, float]]:
        """One phase."""
        return [("load", 0.5)]

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Never calls."""

    def profile(self, order: ProfileOrder | None, is_look: bool = False) -> Future[bool]:
        """Remember the orders; one is under way until it is ended."""
        if not is_look:
            self.profiles.append(order)
        return done(lambda: bool(self.profiles and self.profiles[-1]))

    def shutdown(self) -> None:
        """Remember it."""
        self.is_shut_down = True

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Write the step's cells."""
        self.plans.append(plan)
        return done(lambda: self._execute(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Read the sampled rows' cells."""
        return done(lambda: self._sample(self.plans[-1]))

    def run(self, plan: StepPlan) -> ModelRunnerOutput:
        """Both calls at once."""
        self.execute_model(plan).result()
        return self.sample_tokens(None).result()

    def _execute(self, plan: StepPlan) -> None:
        self.before_execute(plan)
        for request_id in plan.released_ids:
            self._rows.pop(request_id, None)
        for new in plan.new_rows:
            assert new.request_id not in self._rows, "a new row is not held already"
            self._rows[new.request_id] = _Row(
                new.token_ids.tolist(), new.num_prompt_tokens, new.sampling, list(new.block_ids), 0
            )
            self._rows[new.request_id].num_computed_tokens = new.num_computed_tokens
        for index, request_id in enumerate(plan.running_ids):
            self._advance(self._rows[request_id], plan, index)
        for request_id, num_tokens in zip(plan.row_ids, plan.num_scheduled_tokens, strict=True):
            self._write(self._rows[request_id], num_tokens)

    def _advance(self, row: _Row, plan: StepPlan, index: int) -> None:
        given = plan.running_last_token_ids[index]
        assert given in (-1, row.pending), "a plan names the token this row sampled, or none"
        if row.pending >= 0:
            row.token_ids.append(row.pending)
            row.pending = -1
        row.block_ids.extend(plan.running_new_blocks[index])
        assert plan.running_num_computed_tokens[index] == row.num_computed_tokens, "counts agree"

    def _write(self, row: _Row, num_tokens: int) -> None:
        assert num_tokens > 0, "a row in a plan computes something"
        positions = np.arange(row.num_computed_tokens, row.num_computed_tokens + num_tokens)
        row.num_computed_tokens += num_tokens
        assert row.num_computed_tokens <= len(row.token_ids), "only known tokens are computed"
        assert row.num_computed_tokens <= len(row.block_ids) * self.block_size, "the blocks cover the step"
        self._cells[self._slots(row, positions)] = _cell(
            np.array(row.token_ids, dtype=np.int64)[positions], positions
        )

    def _slots(self, row: _Row, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        blocks = np.array(row.block_ids, dtype=np.int64)[positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size

    def _sample(self, plan: StepPlan) -> ModelRunnerOutput:
        self.before_sample()
        output = ModelRunnerOutput(plan.step, [], [], [], [], [], [], [])
        for request_id, num_tokens in zip(plan.row_ids, plan.num_scheduled_tokens, strict=True):
            row = self._rows[request_id]
            self._add_prompt_logprobs(output, request_id, num_tokens)
            if row.num_computed_tokens < len(row.token_ids):
                continue
            row.pending = 0  # what a step begun ahead goes on with, should there be none
            if request_id in self.silent:
                continue
            if request_id in self.failing:
                output.failed.append((request_id, *self.failure))
                continue
            row.pending = _digest(self._cells[self._slots(row, np.arange(row.num_computed_tokens))])
            output.request_ids.append(request_id)
            output.token_ids.append(row.pending)
            if row.sampling.pooling:
                output.pooled.append((request_id, np.array([row.pending, len(row.token_ids)], np.float32)))
            if row.sampling.logprobs is not None:
                output.logprobs.append((request_id, logprobs_of([row.pending])))
        return output

    def _add_prompt_logprobs(self, output: ModelRunnerOutput, request_id: str, num_tokens: int) -> None:
        row = self._rows[request_id]
        begin = row.num_computed_tokens - num_tokens
        end = min(row.num_computed_tokens, row.num_prompt_tokens - 1)
        if row.sampling.prompt_logprobs is not None and begin < end:
            output.prompt_logprobs.append((request_id, logprobs_of(row.token_ids[begin + 1 : end + 1])))


def logprobs_of(token_ids: list[int]) -> Logprobs:
    """Each token's own log-probability: minus its id."""
    tokens = np.array(token_ids, dtype=np.int32)[:, None]
    return Logprobs(tokens, -tokens.astype(np.float32), np.ones(len(token_ids), dtype=np.int32))


def done(call: Callable[[], Any]) -> Future[Any]:
    """A finished future with what the call returns or raises."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future
