"""vllm-obs: an LLM serving platform that explains itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_obs.engine.frontend.beam_search import BeamSearchParams
    from vllm_obs.engine.frontend.llm import LLM
    from vllm_obs.engine.sampling_params import SamplingParams
    from vllm_obs.engine.structured.params import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

_MODULES = {
    "LLM": "vllm_obs.engine.frontend.llm",
    "BeamSearchParams": "vllm_obs.engine.frontend.beam_search",
    "SamplingParams": "vllm_obs.engine.sampling_params",
    "StructuredOutputsParams": "vllm_obs.engine.structured.params",
}


def __getattr__(name: str) -> Any:
    """What is offered here, imported when it is asked for: `import vllm_obs` alone loads nothing."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
