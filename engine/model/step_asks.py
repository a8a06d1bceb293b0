"""Which blocks of the cache each product of a layer asks for, so that attention finds them near."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.cache_asks import ASK_FIELDS, chunks_a_block
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.model.compiled_layer import CompiledLayer

_CACHE_SHARE = 2
"""What is asked for takes one part in so many of the machine's last cache at most: others have theirs in it."""
_MOST_SORTED = 2
"""Of so many times the blocks that can be asked for it is found out which several rows hold: it takes time."""
_FEWEST_TOKENS = 8
"""Products of fewer rows wait for their weights."""
_LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_KIB = 1024
_USUAL_CACHE_BYTES = 16 << 20
"""Where the system does not say."""
ORDER = ("output", "gate_up", "down", "qkv")
"""The products between a layer's attention and the next one's."""


class StepAsks:
    """What a step's products ask for, where each of a layer's four finds it: the same before each attention."""

    def __init__(self, layer: CompiledLayer, shape: CacheShape) -> None:
        sizes = [getattr(layer, name).num_bytes for name in ORDER]
        self._shares = np.cumsum([0, *sizes]) / sum(sizes)
        self._shape = shape
        self._most_blocks = _last_cache_bytes() // _CACHE_SHARE // shape.block_bytes
        self._table = np.zeros((len(ORDER), ASK_FIELDS), np.int64)
        self._numbers = np.empty(0, np.int64)

    def address(self, name: str) -> int:
        """Of what the product of that name asks for; it stays there."""
        return int(self._table.ctypes.data + 8 * ASK_FIELDS * ORDER.index(name))

    def set_step(self, batch: AttentionBatch) -> None:
        """From now on the blocks of this step's rows are asked for, each once."""
        is_few = len(batch.slot_mapping) < _FEWEST_TOKENS
        self._numbers = np.empty(0, np.int64) if is_few else self._blocks(batch)
        ends = (self._shares * (len(self._numbers) * chunks_a_block(self._shape))).astype(np.int64)
        self._table[:, 0] = self._numbers.ctypes.data
        self._table[:, 1], self._table[:, 2] = ends[:-1], ends[1:]

    def _blocks(self, batch: AttentionBatch) -> npt.NDArray[np.int64]:
        ends = -(-np.array(batch.seq_lens, np.int64) // self._shape.block_size)
        tables = batch.block_tables.numpy()
        held = tables[np.arange(tables.shape[1]) < ends[:, None]]
        if len(held) <= _MOST_SORTED * self._most_blocks:
            held = np.unique(held)
        if len(held) <= self._most_blocks:
            return held
        # A row's last block is not only read: what is written to it would be waited for.
        newest = np.unique(tables[np.arange(len(ends)), ends - 1])
        others = np.setdiff1d(held[: _MOST_SORTED * self._most_blocks], newest)
        return np.concatenate((newest, others))[: self._most_blocks]


def _last_cache_bytes() -> int:
    """What Linux says of the first CPU's third cache."""
    try:
        return _KIB * int(_LAST_CACHE.read_text("utf-8").strip().removesuffix("K"))
    except (OSError, ValueError):
        return _USUAL_CACHE_BYTES
