"""How kernels see a layer's paged cache, and the heads that read it."""

from dataclasses import dataclass

from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import STORED_BYTES


@dataclass(frozen=True)
class CacheShape:
    """A block is (2, kv_heads, head_dim * block_size) numbers.

    A head's keys are (head_dim, block_size), so that one vector holds a feature of neighbouring tokens; its values
    are (block_size, head_dim).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    stored: str

    @property
    def number_bytes(self) -> int:
        """Bytes of one number."""
        return STORED_BYTES[self.stored]

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's keys, or values, in a block."""
        return self.head_dim * self.block_size * self.number_bytes

    @property
    def values_offset(self) -> int:
        """Where a block's values begin."""
        return self.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return 2 * self.values_offset

    @property
    def num_sharing(self) -> int:
        """Query heads that read one key head."""
        return self.num_heads // self.num_kv_heads

    def fits(self, machine: Machine) -> bool:
        """Whether heads and blocks are whole vectors."""
        lanes = machine.num_lanes
        return self.head_dim % lanes == 0 and self.block_size % lanes == 0 and self.num_sharing <= 8
