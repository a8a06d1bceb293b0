"""vllm-obs: an LLM serving platform that explains itself."""

__version__ = "0.1.0"
