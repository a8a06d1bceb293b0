"""What a grammar adds to the engine's steps: 16 sequences with one and without, in turn, in this very process.

CPU time tells it also on a machine that does other things; the wall time of a step does not.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.client_inproc import InprocClient
from vllm_obs.engine.messages import EngineCoreRequest, SamplingSpec
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.telemetry.recorder import MemoryRecorder

NUM_ROWS = 16
NUM_PROMPT_TOKENS = 24
NUM_FIRST_STEPS = 5
"""Prompts, and whatever is done once."""


class StepTime(NamedTuple):
    """Milliseconds of one step: by the clock, of CPU in the engine's thread, and of CPU in all threads."""

    wall: float
    main: float
    every: float


CLOCKS: tuple[Callable[[], float], ...] = (time.perf_counter, time.thread_time, time.process_time)


class EngineBench:
    """An engine, and rounds of sequences that all take as many steps."""

    def __init__(self, num_tokens: int, temperature: float) -> None:
        args = EngineArgs(kv_cache_memory_bytes=1 << 30, max_num_seqs=NUM_ROWS)
        self._client = InprocClient(args.create_engine_config(), MemoryRecorder())
        self._num_tokens = num_tokens
        self._temperature = temperature
        self._num_requests = 0

    def round(self, grammar: str) -> StepTime:
        """The median step of a round."""
        for _ in range(NUM_ROWS):
            self._client.add_request(self._request(grammar))
        steps: list[StepTime] = []
        while len(steps) < self._num_tokens:
            before = [clock() for clock in CLOCKS]
            if self._client.get_output() is not None:
                steps.append(
                    StepTime(*(1e3 * (clock() - then) for clock, then in zip(CLOCKS, before, strict=True)))
                )
        while self._client.get_output() is not None:
            pass
        return StepTime(*map(statistics.median, zip(*steps[NUM_FIRST_STEPS:], strict=True)))

    def close(self) -> None:
        """End the engine."""
        self._client.shutdown()

    def _request(self, grammar: str) -> EngineCoreRequest:
        self._num_requests += 1
        number = self._num_requests
        prompt = np.random.default_rng(number).integers(1000, 40_000, NUM_PROMPT_TOKENS).astype(np.int32)
        sampling = SamplingSpec(
            temperature=self._temperature, seed=number, max_tokens=self._num_tokens, grammar=grammar
        )
        return EngineCoreRequest(f"r{number}", 0, 0, prompt, sampling, 0, None, time.monotonic_ns())


def measure_engine(schema: dict[str, Any], num_pairs: int, num_tokens: int, temperature: float) -> None:
    """Print each pair and the medians of their differences."""
    grammar = StructuredOutputsParams(json=schema).grammar_text()
    bench = EngineBench(num_tokens, temperature)
    for text in ("", grammar, grammar):
        bench.round(text)
    added, without = [], []
    for number in range(num_pairs):
        order = ("", grammar) if number % 2 else (grammar, "")
        found = {text: bench.round(text) for text in order}
        plain, bound = found[""], found[grammar]
        without.append(plain.main)
        added.append(StepTime(*(after - before for after, before in zip(bound, plain, strict=True))))
        print(f"without {_told(plain)}   with {_told(bound)}", flush=True)
    bench.close()
    median = StepTime(*map(statistics.median, zip(*added, strict=True)))
    share = 100 * median.main / statistics.median(without)
    print(f"median of what it adds: {_told(median)}; {share:.1f} % of the engine's thread")


def _told(step: StepTime) -> str:
    return f"step {step.wall:.2f} ms, CPU {step.main:.2f} ms in its thread, {step.every:.2f} ms in all"
