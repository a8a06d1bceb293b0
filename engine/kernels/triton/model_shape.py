"""ModelShape: the sizes of a decoder that its kernels see, and those of two well-known models."""

from dataclasses import dataclass

from vllm_obs.engine.config import ModelArchitecture


@dataclass(frozen=True)
class ModelShape:
    """`has_head_norms`: queries and keys are normed before they are rotated."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    has_head_norms: bool = False

    @classmethod
    def of(cls, name: str, architecture: ModelArchitecture) -> "ModelShape":
        """A model's."""
        return cls(
            name,
            architecture.hidden_size,
            architecture.intermediate_size,
            architecture.num_heads,
            architecture.num_kv_heads,
            architecture.head_dim,
            architecture.vocab_size,
            architecture.qk_norm,
        )


LLAMA_3_8B = ModelShape("llama-3-8b", 4096, 14336, 32, 8, 128, 128256)
QWEN3_0_6B = ModelShape("qwen3-0.6b", 1024, 3072, 16, 8, 128, 151936, has_head_norms=True)
TINY = ModelShape("tiny", 64, 96, 4, 2, 16, 260, has_head_norms=True)
"""For the interpreter."""
