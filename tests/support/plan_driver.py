"""Plans made by hand for a runner: chunks, stalls and preemptions as a test wants them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vllm_obs.engine.messages import Logprobs, SamplingSpec
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, NewRow, StepPlan


class Runner(Protocol):
    """A model runner, or a worker around one."""

    def execute_model(self, plan: StepPlan) -> None: ...

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput: ...


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

    def __init__(self, runner: Runner, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.runner = runner
        self.block_size = block_size
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(num_blocks).tolist()
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
