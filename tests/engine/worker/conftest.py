"""A model that reads its tokens back from the paged cache, and a driver that makes plans by hand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import (
    CacheConfig,
    ModelArchitecture,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_obs.engine.messages import Logprobs, SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.worker.model_runner import ModelRunner

VOCAB = 64


class FakeCache:
    """One slot holds the token written there and its position."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.slots = torch.full((num_blocks * block_size, 2), -1)


class FakeModel:
    """Logits of a position are a function of all tokens up to it, as found in the cache through the block table.

    A wrong slot, position, block table or row gives other logits, or fails an assertion.
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.batches: list[AttentionBatch] = []

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> FakeCache:
        return FakeCache(num_blocks, block_size)

    def kv_block_bytes(self, block_size: int) -> int:
        return 8 * block_size

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, kv_cache: FakeCache
    ) -> torch.Tensor:
        assert token_ids.dtype == positions.dtype == batch.slot_mapping.dtype == batch.block_tables.dtype
        assert [length == 1 for length in batch.query_lens] == sorted(
            (length == 1 for length in batch.query_lens), reverse=True
        )
        assert batch.num_decodes == batch.query_lens.count(1)
        assert len(token_ids) == sum(batch.query_lens)
        self.batches.append(batch)
        kv_cache.slots[batch.slot_mapping] = torch.stack([token_ids, positions], dim=1)
        states = []
        for row, (query_len, seq_len) in enumerate(zip(batch.query_lens, batch.seq_lens, strict=True)):
            every = np.arange(seq_len)
            blocks = batch.block_tables[row].numpy()[every // kv_cache.block_size]
            cached = kv_cache.slots[torch.from_numpy(blocks * kv_cache.block_size + every % kv_cache.block_size)]
            assert cached[:, 1].tolist() == every.tolist()
            states += [history(cached[:end, 0].tolist()) for end in range(seq_len - query_len + 1, seq_len + 1)]
        return torch.tensor(states)[batch.logits_indices]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.heads.append(len(hidden))
        return torch.stack([logits_of(int(state)) for state in hidden])


def history(tokens: list[int]) -> int:
    """A number that stands for a sequence of tokens."""
    state = 7
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % (2**31 - 1)
    return state


def logits_of(state: int) -> torch.Tensor:
    """Float32 (vocab,) for a history."""
    return torch.from_numpy(np.random.default_rng(state).normal(size=VOCAB).astype(np.float32) * 3)


def make_config(**changes: Any) -> VllmConfig:
    """A small configuration; names of its parts' fields may be given."""
    architecture = ModelArchitecture("Fake", VOCAB, 8, 8, 1, 1, 1, 8, 1e-5, 1e4, 128, True)
    parts: dict[str, Any] = {
        "model": ModelConfig("fake", "", "dummy", "", ("fake",), architecture, "float32", 96),
        "cache": CacheConfig(block_size=4),
        "scheduler": SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        "parallel": ParallelConfig(),
        "observability": ObservabilityConfig(),
    }
    for name, part in parts.items():
        mine = {field: changes.pop(field) for field in list(changes) if hasattr(part, field)}
        parts[name] = replace(part, **mine)
    assert not changes
    return VllmConfig(**parts)


@dataclass
class Sequence:
    """One sequence as a scheduler knows it."""

    prompt: list[int]
    sampling: SamplingSpec
    num_output: int
    blocks: list[int]
    outputs: list[int]
    computed: int = 0
    is_held: bool = False


class Driver:
    """Plans steps for sequences by hand: chunks of at most `chunk` tokens, blocks scattered over the pool."""

    def __init__(self, runner: ModelRunner, seed: int = 0) -> None:
        self.runner = runner
        self.block_size = runner.kv_cache.block_size
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(runner.kv_cache.num_blocks).tolist()
        self.sequences: dict[str, Sequence] = {}
        self.logprobs: dict[str, list[Logprobs]] = {}
        self.prompt_logprobs: dict[str, list[Logprobs]] = {}
        self.failed: list[tuple[str, str, str]] = []
        self.step = 0
        self.released: list[str] = []

    def add(self, name: str, prompt: list[int], sampling: SamplingSpec, num_output: int) -> None:
        self.sequences[name] = Sequence(prompt, sampling, num_output, [], [])

    def preempt(self, name: str) -> None:
        """Take a sequence's blocks away; it starts over with all its tokens."""
        sequence = self.sequences[name]
        self.free += sequence.blocks
        sequence.blocks, sequence.computed = [], 0
        if sequence.is_held:
            self.released.append(name)
        sequence.is_held = False

    def run(self, chunks: dict[str, int], leave_token_to_worker: bool = True) -> ModelRunnerOutput:
        """One step with so many tokens at most for each named sequence."""
        new: list[NewRow] = []
        running: list[tuple[str, list[int], int, int, int]] = []
        scheduled = {}
        for name, chunk in chunks.items():
            sequence = self.sequences[name]
            known = len(sequence.prompt) + len(sequence.outputs)
            count = scheduled[name] = min(chunk, known - sequence.computed)
            needed = -(-(sequence.computed + count) // self.block_size) - len(sequence.blocks)
            blocks = [self.free.pop() for _ in range(needed)]
            sequence.blocks += blocks
            if sequence.is_held:
                is_decode = sequence.computed == known - 1 and bool(sequence.outputs)
                last = sequence.outputs[-1] if is_decode and not leave_token_to_worker else -1
                running.append((name, blocks, sequence.computed, last, count))
            else:
                tokens = np.array([*sequence.prompt, *sequence.outputs], np.int32)
                row = (len(sequence.prompt), sequence.sampling, list(sequence.blocks), sequence.computed)
                new.append(NewRow(name, tokens, *row))
            sequence.computed += count
            sequence.is_held = True
        self.step += 1
        names, blocks_of, computed, last_tokens, counts = (
            (list(column) for column in zip(*running, strict=True)) if running else ([], [], [], [], [])
        )
        order = [scheduled[row.request_id] for row in new] + counts
        plan = StepPlan(self.step, new, names, blocks_of, computed, last_tokens, order, self.released)
        self.released = []
        self.runner.execute_model(plan)
        output = self.runner.sample_tokens(None)
        self._take(output, plan)
        return output

    def _take(self, output: ModelRunnerOutput, plan: StepPlan) -> None:
        assert output.step == plan.step
        sampled = [name for name in plan.row_ids if name in output.request_ids]
        assert output.request_ids == sampled
        for name, token in zip(output.request_ids, output.token_ids, strict=True):
            self.sequences[name].outputs.append(token)
        for name, logprobs in output.logprobs:
            self.logprobs.setdefault(name, []).append(logprobs)
        for name, logprobs in output.prompt_logprobs:
            self.prompt_logprobs.setdefault(name, []).append(logprobs)
        self.failed += output.failed
        for name, sequence in list(self.sequences.items()):
            if len(sequence.outputs) >= sequence.num_output and sequence.is_held:
                self.free += sequence.blocks
                sequence.blocks, sequence.is_held = [], False
                self.released.append(name)

    def unfinished(self) -> list[str]:
        return [name for name, sequence in self.sequences.items() if len(sequence.outputs) < sequence.num_output]

    def run_all(self, chunk: int = 1000) -> dict[str, list[int]]:
        """Run everything to its end, all at once, and return the outputs."""
        while names := self.unfinished():
            self.run(dict.fromkeys(names, chunk))
        return {name: sequence.outputs for name, sequence in self.sequences.items()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config_with() -> Callable[..., VllmConfig]:
    return make_config


@pytest.fixture
def fake_model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def new_driver(fake_model: FakeModel) -> Callable[..., Driver]:
    def make(num_blocks: int = 200, seed: int = 0, **changes: Any) -> Driver:
        config = make_config(**changes)
        cache = fake_model.allocate_kv_cache(num_blocks, config.cache.block_size)
        return Driver(ModelRunner(config, fake_model, cache), seed)

    return make


@pytest.fixture
def logits_after() -> Callable[[list[int]], torch.Tensor]:
    """The fake model's logits after a sequence of tokens."""
    return lambda tokens: logits_of(history(tokens))
