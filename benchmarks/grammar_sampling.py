"""What a grammar adds to the sampling of 16 rows: CPU time of one thread, without a model, along a given text.

A model's step takes a hundred times as long, and its threads wait for each other: this would be lost in it.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.frontend.tokenizer import load_tokenizer
from vllm_obs.engine.messages import EngineCoreRequest, SamplingSpec
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.request import Request
from vllm_obs.engine.sampling.columns import SamplingBatch, SamplingColumns
from vllm_obs.engine.sampling.sampler import sample
from vllm_obs.engine.structured.compiler import build_matcher
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.engine.structured.grammar_state import GrammarState
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.engine.structured.token_table import TokenWords, token_table

NUM_ROWS = 16
NUM_ROUNDS = 5
LIKELY = 14.0
"""What the text's own token has over the others: a model that follows the schema by itself, most of the time."""


class Added(NamedTuple):
    """Microseconds of a step: masks, what sampling takes longer (or less), tokens taken; and sampling without."""

    masks: float
    sampling: float
    taking: float
    without: float


class SamplingBench:
    """Rows that all follow one text, and logits in which it is likely."""

    def __init__(self, temperature: float) -> None:
        self._model = EngineArgs(dtype="float32").create_engine_config().model
        self._book = GrammarBook(self._model)
        vocab_size = self._model.architecture.vocab_size
        self._columns = SamplingColumns(NUM_ROWS, vocab_size)
        self._token_ids = np.zeros((NUM_ROWS, 8), np.int32)
        for row in range(NUM_ROWS):
            spec = SamplingSpec(temperature=temperature, seed=row)
            self._columns.set_row(row, spec, self._token_ids[row], 4)
        noise = np.random.default_rng(0).normal(size=(NUM_ROWS, vocab_size)) * 2
        self._logits = torch.from_numpy(noise.astype(np.float32))

    def run(self, schema: dict[str, Any], text: str) -> Added:
        """The medians over the text's tokens, and over rounds."""
        tokenizer = load_tokenizer(self._model)
        words = TokenWords.of(tokenizer, self._model.architecture.vocab_size)
        tokens = token_table(words, self._model.architecture.vocab_size)
        matcher = build_matcher(tokens, StructuredOutputsParams(json=schema).grammar_text())
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        steps = [step for _ in range(NUM_ROUNDS) for step in self._round(matcher, token_ids)]
        return Added(*(statistics.median(column) for column in zip(*steps, strict=True)))

    def _round(self, matcher: LLMatcher, token_ids: list[int]) -> list[Added]:
        requests = [_request(row, matcher) for row in range(NUM_ROWS)]
        return [self._step(requests, token_id) for token_id in token_ids]

    def _step(self, requests: list[Request], token_id: int) -> Added:
        without = self._sampled(token_id, None)
        masks, taken = _timed(lambda: self._book.begin_masks(requests, in_thread=False).result())
        bound = self._sampled(token_id, masks)
        taking = _timed(lambda: [_grammar(request).accept(token_id) for request in requests])[1]
        return Added(taken, bound - without, taking, without)

    def _sampled(self, token_id: int, masks: GrammarMasks | None) -> float:
        logits = self._logits.clone()
        logits[:, token_id] += LIKELY
        batch = SamplingBatch(
            columns=self._columns,
            rows=np.arange(NUM_ROWS),
            request_ids=[str(row) for row in range(NUM_ROWS)],
            num_tokens=np.full(NUM_ROWS, 8),
            num_prompt_tokens=np.full(NUM_ROWS, 4),
            token_ids=self._token_ids,
        )
        return _timed(lambda: sample(logits, batch, masks))[1]


def _request(row: int, matcher: LLMatcher) -> Request:
    compiled: Future[LLMatcher] = Future()
    compiled.set_result(matcher)
    state = GrammarState(compiled)
    state.begin()
    message = EngineCoreRequest(str(row), 0, 0, np.arange(4, dtype=np.int32), SamplingSpec(), 0, None, 0)
    return Request(message, (0, row), 4096, state)


def _grammar(request: Request) -> GrammarState:
    assert isinstance(request.grammar, GrammarState)
    return request.grammar


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.thread_time_ns()
    result = act()
    return result, (time.thread_time_ns() - begun) / 1e3


def measure_sampling(cases: dict[str, tuple[dict[str, Any], str]]) -> None:
    """Print each schema's costs, greedy and at 0.8."""
    torch.set_num_threads(1)
    for temperature in (0.8, 0.0):
        bench = SamplingBench(temperature)
        for name, (schema, text) in cases.items():
            added = bench.run(schema, text)
            total = added.masks + added.sampling + added.taking
            parts = f"masks {added.masks:.0f}, sampling {added.sampling:+.0f}, taking {added.taking:.0f}"
            print(f"{name:8} at {temperature}: adds {total:.0f} us ({parts}) to {added.without:.0f}", flush=True)
