"""The default model's configuration and tokenizer, read once a session and without torch."""

from functools import cache

from vllm_obs.engine.config import (
    CacheConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.model.source import resolve_model


@cache
def default_model_config(max_model_len: int = 2048) -> ModelConfig:
    """The default model in float32, with a shorter context."""
    source = resolve_model(None)
    return ModelConfig(
        model=source.model,
        path=source.path,
        source=source.source,
        tokenizer=source.path,
        served_model_names=(source.model,),
        architecture=source.architecture,
        dtype="float32",
        max_model_len=max_model_len,
        chat_template=source.chat_template,
    )


def default_config(stream_interval: int = 1) -> VllmConfig:
    """The default model with default limits."""
    scheduler = SchedulerConfig(stream_interval=stream_interval)
    return VllmConfig(default_model_config(), CacheConfig(), scheduler, ParallelConfig(), ObservabilityConfig())


@cache
def default_tokenizer() -> Tokenizer:
    """The default model's tokenizer."""
    return load_tokenizer(default_model_config())
