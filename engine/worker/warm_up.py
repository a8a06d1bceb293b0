"""The warm-up: steps that nobody asked for, so that the first request does not pay for first uses."""

import numpy as np

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import GrammarMasks, NewRow, StepPlan
from vllm_obs.engine.startup_phases import startup_part
from vllm_obs.engine.worker.model_runner import ModelRunner

WARM_UP_TOKENS = 32
_PLAIN = SamplingSpec(top_p=0.9)


def warm_up(config: VllmConfig, runner: ModelRunner) -> None:
    """Run a short prompt and one decode step; on a GPU, with all that kernels are compiled for."""
    if config.model.architecture.is_encoder:
        _warm_up_encoder(config, runner)
        return
    block_size = config.cache.block_size
    room = min(config.model.max_model_len, runner.kv_cache.num_blocks * block_size)
    num_tokens = min(WARM_UP_TOKENS, room - 1, config.scheduler.max_num_batched_tokens)
    if num_tokens < 1:
        return
    if config.model.device == "cuda":
        _compile_decodes(config, runner)
    blocks = list(range(-(-(num_tokens + 1) // block_size)))
    num_words = -(-config.model.architecture.vocab_size // 32)
    # Of a grammar that allows all: with one, whatever draws is compiled too.
    masks = GrammarMasks(["warm-up"], np.full((1, num_words), -1, np.int32))
    for sampling in _specs(config, runner):
        new = NewRow("warm-up", np.zeros(num_tokens, np.int32), num_tokens, sampling, blocks, 0)
        for plan in (
            StepPlan(0, [new], [], [], [], [], [num_tokens], []),
            StepPlan(0, [], ["warm-up"], [[]], [num_tokens], [0], [1], []),
            StepPlan(0, [], [], [], [], [], [], ["warm-up"]),
        ):
            runner.execute_model(plan)
            runner.sample_tokens(masks)


def _compile_decodes(config: VllmConfig, runner: ModelRunner) -> None:
    """Where decodes may run eagerly, compile them for contexts of any length: they would hold up a step later."""
    sizes = [] if runner.graphs is None else runner.graphs.sizes
    has_all = max(sizes, default=0) >= config.scheduler.max_num_seqs
    if not has_all and hasattr(runner.model, "warm_decodes"):
        with startup_part("compile kernels"):
            runner.model.warm_decodes(runner.kv_cache, config.model.max_model_len)


def _specs(config: VllmConfig, runner: ModelRunner) -> list[SamplingSpec]:
    """Parameters with which everything that the sampler may have to compile is compiled."""
    if config.model.device != "cuda" or not hasattr(runner.model, "card"):
        return [_PLAIN]
    # Imported here: Triton takes a while, and most CPUs do without it.
    from vllm_obs.engine.sampling.triton_scores import ALTERNATIVES

    edited = _PLAIN._replace(presence_penalty=0.1, logit_bias=((0, 0.1),), top_k=1)
    return [_PLAIN, *(edited._replace(logprobs=number) for number in ALTERNATIVES)]


def _warm_up_encoder(config: VllmConfig, runner: ModelRunner) -> None:
    num_tokens = min(WARM_UP_TOKENS, config.model.max_model_len)
    blocks = list(range(-(-num_tokens // config.cache.block_size)))
    text, sampling = np.zeros(num_tokens, np.int32), SamplingSpec(max_tokens=0, pooling="mean")
    new = NewRow("warm-up", text, num_tokens, sampling, blocks, 0)
    for plan in (
        StepPlan(0, [new], [], [], [], [], [num_tokens], []),
        StepPlan(0, [], [], [], [], [], [], ["warm-up"]),
    ):
        runner.execute_model(plan)
        runner.sample_tokens(None)
