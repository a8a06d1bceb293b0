"""Mixed requests, and the judge of whether two runs of them gave the same tokens."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from serving import MODEL

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.model.loader import load_model
from vllm_obs.engine.sampling.draw import uniforms
from vllm_obs.engine.sampling.truncation import Filters, kept_tokens
from vllm_obs.engine.sampling_params import SamplingParams

ANSWER_SECONDS = 500.0
"""How long a request may take where others want the same cores: it is about its tokens, not about speed."""
LOGPROB_TIE = 1e-4
DRAW_TIE = 1e-5
VOCAB = 49152
FEW = 12
ASKED = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "max_tokens",
    "min_tokens",
)


@dataclass(frozen=True)
class MixedRequest:
    """A prompt as token ids and what to sample from it."""

    prompt: list[int]
    params: SamplingParams

    @property
    def body(self) -> dict[str, Any]:
        """The same for /v1/completions, with the ids of its tokens in the reply."""
        fields = {name: getattr(self.params, name) for name in ASKED}
        return {"model": MODEL, "prompt": self.prompt, "ignore_eos": True, "return_token_ids": True, **fields}


def mixed_requests(count: int = 64) -> list[MixedRequest]:
    """Lengths from 1 to 900 (of few 450), half of them greedy, the others seeded; the same list on every call."""
    random = np.random.default_rng(2)
    lengths = np.geomspace(1, 900 if count > FEW else 450, count).astype(int)
    random.shuffle(lengths)
    shared = random.integers(100, VOCAB, 64).tolist()
    return [
        MixedRequest(_prompt(random, int(length), shared, i), _params(i, int(random.integers(3, 13))))
        for i, length in enumerate(lengths)
    ]


def _prompt(random: np.random.Generator, length: int, shared: list[int], i: int) -> list[int]:
    """Every third prompt long enough begins with the same 64 tokens."""
    own: list[int] = random.integers(100, VOCAB, length).tolist()
    return shared + own[64:] if i % 3 == 0 and length > 64 else own


def _params(i: int, max_tokens: int) -> SamplingParams:
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    kinds = (
        greedy,
        replace(greedy, repetition_penalty=1.2, min_tokens=2),
        replace(greedy, temperature=0.4, seed=1000 + i),
        replace(greedy, temperature=1.0, top_p=0.9, top_k=50, seed=2000 + i, presence_penalty=0.5),
    )
    return kinds[i % 4]


class Judge:
    """Tells a tie from a difference: recomputes the distribution where two runs first disagree."""

    def __init__(self, requests: list[MixedRequest], **engine_args: Any) -> None:
        """`engine_args` say which model it is, if not the default one."""
        self.requests = requests
        self._engine_args = engine_args
        self._model: Any = None

    def compare(self, name: str, expected: list[list[int]], actual: list[list[int]]) -> None:
        """Fail unless all outputs are equal but for at most three, each at a near tie; print those."""
        assert [len(tokens) for tokens in actual] == [len(tokens) for tokens in expected], name
        differing = [i for i in range(len(expected)) if expected[i] != actual[i]]
        margins = {i: self._margin(i, expected[i], actual[i]) for i in differing}
        for i, (kind, margin) in margins.items():
            print(f"{name}: request {i} differs at a {kind} margin of {margin:.2e}")
        assert all(margin <= (LOGPROB_TIE if kind == "greedy" else DRAW_TIE) for kind, margin in margins.values())
        assert len(differing) <= 3, f"{name}: {differing}"

    def _margin(self, i: int, expected: list[int], actual: list[int]) -> tuple[str, float]:
        at = next(j for j, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b)
        request = self.requests[i]
        logits = self._logits(request.prompt + expected[:at])
        _penalise(logits, request, expected[:at])
        pair = sorted((expected[at], actual[at]))
        if request.params.temperature == 0.0:
            logprobs = torch.log_softmax(torch.from_numpy(logits), -1)
            return "greedy", abs(float(logprobs[pair[0]] - logprobs[pair[1]]))
        return "draw", self._draw_margin(logits, request, len(request.prompt) + at, pair)

    def _draw_margin(self, logits: np.ndarray, request: MixedRequest, position: int, pair: list[int]) -> float:
        params = request.params
        ids, weights = _kept(logits, params)
        upto = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
        seed, index, place = (np.array([n], np.uint64) for n in (params.seed, 0, position))
        number = float(uniforms(seed, index, place)[0])
        low, high = (float(upto[np.searchsorted(ids, token)]) for token in pair)
        boundary = low if abs(number - low) < abs(number - high) else high
        return abs(number - boundary)

    def _logits(self, token_ids: list[int]) -> np.ndarray:
        if self._model is None:
            self._model = load_model(EngineArgs(dtype="float32", **self._engine_args).create_engine_config())
        count = len(token_ids)
        num_blocks = -(-count // 16)
        cache = self._model.allocate_kv_cache(num_blocks, 16)
        batch = AttentionBatch(
            num_decodes=int(count == 1),
            query_lens=[count],
            seq_lens=[count],
            block_tables=torch.arange(num_blocks)[None],
            slot_mapping=torch.arange(count),
            logits_indices=torch.tensor([count - 1]),
        )
        with torch.inference_mode():
            hidden = self._model.forward(torch.tensor(token_ids), torch.arange(count), batch, cache)
            logits: np.ndarray = self._model.compute_logits(hidden)[0].numpy().copy()
        return logits


def _kept(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights of the tokens that can be drawn."""
    if params.top_k <= 0 and params.top_p == 1.0:
        return np.arange(len(logits)), np.exp((logits - logits.max()) / params.temperature)
    filters = Filters(params.temperature, max(params.top_k, 0), params.top_p, params.min_p)
    return kept_tokens(logits, logits.reshape(-1, 128).max(-1), filters)


def _penalise(logits: np.ndarray, request: MixedRequest, output: list[int]) -> None:
    """The penalties' formulas, plainly: repetition over prompt and output, presence over output."""
    params = request.params
    if params.repetition_penalty != 1.0:
        seen = list({*request.prompt, *output})
        chosen = logits[seen]
        logits[seen] = np.where(chosen > 0, chosen / params.repetition_penalty, chosen * params.repetition_penalty)
    if params.presence_penalty and output:
        logits[list(set(output))] -= params.presence_penalty
