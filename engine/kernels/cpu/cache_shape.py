"""How kernels see a layer's paged cache, and the heads that read it."""

from dataclasses import dataclass

from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import STORED_BYTES

SCALE_BYTES = 4


@dataclass(frozen=True)
class CacheShape:
    """A block is of each key head its keys and then its values.

    A head's keys are (head_dim, block_size), so that one vector holds a feature of neighbouring tokens; its values
    are (block_size, head_dim). As whole numbers (`stored` int16) neighbours are in pairs, as the instruction that
    multiplies them reads: keys are (head_dim / 2, block_size, 2), values (block_size / 2, head_dim, 2), and behind
    either there is a float32 for each token: what a step of its numbers is worth.
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
        """Bytes of one head's keys and values in a block."""
        return 2 * self.values_offset

    @property
    def is_coded(self) -> bool:
        """Whether keys and values are whole numbers."""
        return self.stored == "int16"

    @property
    def scales_offset(self) -> int:
        """How far the scales of a head's keys, or values, are behind the first of these."""
        return self.head_dim * self.block_size * self.number_bytes

    @property
    def values_offset(self) -> int:
        """How far a head's values are behind its keys."""
        return self.scales_offset + self.block_size * (SCALE_BYTES if self.is_coded else 0)

    @property
    def token_numbers(self) -> int:
        """How many numbers a head's key, or value, takes the room of."""
        return self.values_offset // self.block_size // self.number_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.num_kv_heads * self.head_bytes

    @property
    def num_sharing(self) -> int:
        """Query heads that read one key head."""
        return self.num_heads // self.num_kv_heads

    def fits(self, machine: Machine) -> bool:
        """Whether heads and blocks are whole vectors."""
        lanes = machine.num_lanes
        return self.head_dim % lanes == 0 and self.block_size % lanes == 0 and self.num_sharing <= 8


def cache_form(stored: str, machine: Machine) -> str:
    """What keys and values are held in, by what other numbers are: whole ones where these are multiplied fast."""
    return "int16" if stored != "float32" and machine.adds_products else stored
