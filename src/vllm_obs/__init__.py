"""vllm-obs: an LLM serving platform that explains itself."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_obs.engine.frontend.llm import LLM
    from vllm_obs.engine.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """`LLM` and `SamplingParams`, imported when they are asked for: `import vllm_obs` alone loads nothing."""
    if name == "LLM":
        from vllm_obs.engine.frontend.llm import LLM

        return LLM
    if name == "SamplingParams":
        from vllm_obs.engine.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
