"""Partition: which part of a model one rank holds, of its layers and of each layer's matrices."""

from dataclasses import dataclass, replace

from vllm_obs.engine.config import ModelArchitecture, ParallelConfig


@dataclass(frozen=True)
class Partition:
    """One shard of one stage. Stages share the layers, in order; the shards of a stage share each matrix.

    A shard has its query heads and the key-value heads that these read; one that several shards need, each of them
    has. Whether it comes out even was checked before (see parallel_checks.py).
    """

    shard: int = 0
    num_shards: int = 1
    stage: int = 0
    num_stages: int = 1

    @classmethod
    def of_rank(cls, parallel: ParallelConfig, rank: int) -> "Partition":
        """What a rank of an engine holds."""
        stage, shard = divmod(rank, parallel.tensor_parallel_size)
        return cls(shard, parallel.tensor_parallel_size, stage, parallel.pipeline_parallel_size)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole model."""
        return self.num_shards * self.num_stages == 1

    @property
    def is_first_stage(self) -> bool:
        """Whether it has the embedding."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether it has the final norm and the head that makes logits."""
        return self.stage == self.num_stages - 1

    def layers(self, architecture: ModelArchitecture) -> range:
        """The stage's layers; of those that do not come out even the earlier stages have one more."""
        num_each, num_left = divmod(architecture.num_layers, self.num_stages)
        begin = self.stage * num_each + min(self.stage, num_left)
        return range(begin, begin + num_each + (self.stage < num_left))

    def heads(self, architecture: ModelArchitecture) -> range:
        """The shard's query heads."""
        return self._share(architecture.num_heads)

    def kv_heads(self, architecture: ModelArchitecture) -> range:
        """The key-value heads that its query heads read."""
        if architecture.num_kv_heads >= self.num_shards:
            return self._share(architecture.num_kv_heads)
        head = self.shard * architecture.num_kv_heads // self.num_shards
        return range(head, head + 1)

    def inner(self, architecture: ModelArchitecture) -> range:
        """Its part of the width between the two products of a layer's MLP."""
        return self._share(architecture.intermediate_size)

    def words(self, architecture: ModelArchitecture) -> range:
        """Its part of the vocabulary; the last shards may have less, or nothing."""
        vocab_size = architecture.vocab_size
        num_each = -(-vocab_size // self.num_shards)
        begin = min(self.shard * num_each, vocab_size)
        return range(begin, min(begin + num_each, vocab_size))

    def local(self, architecture: ModelArchitecture) -> ModelArchitecture:
        """The shape of what the rank holds: its heads, its width, its layers; the vocabulary stays whole."""
        return replace(
            architecture,
            num_layers=len(self.layers(architecture)),
            num_heads=len(self.heads(architecture)),
            num_kv_heads=len(self.kv_heads(architecture)),
            intermediate_size=len(self.inner(architecture)),
        )

    def _share(self, size: int) -> range:
        num_each = size // self.num_shards
        return range(self.shard * num_each, (self.shard + 1) * num_each)


WHOLE_MODEL = Partition()
