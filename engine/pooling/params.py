"""What a prompt is given to the engine with when a vector is wanted of it."""

from vllm_obs.engine.pooling.kinds import PoolingKind
from vllm_obs.engine.sampling_params import SamplingParams


def pooling_params(kind: PoolingKind, truncate_prompt_tokens: int | None = None) -> SamplingParams:
    """Parameters of a sequence that gives no token, only its prompt's vector.

    `truncate_prompt_tokens` keeps so many of the prompt's first tokens, -1 as many as the model takes.
    """
    return SamplingParams(
        temperature=0.0,
        max_tokens=0,
        detokenize=False,
        truncate_prompt_tokens=truncate_prompt_tokens,
        pooling=kind,
    )
