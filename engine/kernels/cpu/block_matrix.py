"""A GGUF file's matrix in its own blocks, reordered once into panels that a kernel reads as one stream."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_tile import panel_outputs
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE, PAIR_ORDER

FORMS = {"Q4_0": "q4", "Q4_1": "q4", "Q8_0": "q8"}
"""What kernels there are, by the types of a GGUF file that they read."""


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix (out, in): uint8 (panels, groups, bytes), for each group of inputs what a panel's outputs have.

    q4: float16 scales and offsets, and 4-bit codes as they lie in the file, the words of the same inputs together.
    q8: float16 scales, and pairs of 8-bit codes in PAIR_ORDER. Outputs that do not exist are zeros.
    """

    panels: torch.Tensor
    num_outputs: int
    num_inputs: int
    form: str
    width: int

    @classmethod
    def pack(cls, rows: torch.Tensor, type_name: str, machine: Machine) -> "BlockMatrix":
        """From uint8 (out, bytes per row) of a type in FORMS."""
        width, block_bytes = panel_outputs(machine), {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[type_name]
        num_outputs, num_groups = rows.shape[0], rows.shape[1] // block_bytes
        blocks = rows.new_zeros(-(-num_outputs // width), width, num_groups, block_bytes)
        blocks.view(-1, num_groups, block_bytes)[:num_outputs] = rows.view(num_outputs, num_groups, block_bytes)
        by_group = blocks.transpose(1, 2)
        parts = _four_bit_parts(by_group) if FORMS[type_name] == "q4" else _eight_bit_parts(by_group)
        panels = torch.cat([part.contiguous().view(torch.uint8).flatten(2) for part in parts], 2)
        return cls(panels, num_outputs, GROUP_SIZE * num_groups, FORMS[type_name], width)

    @property
    def padded_outputs(self) -> int:
        """Outputs with those of the last panel that do not exist."""
        return self.panels.shape[0] * self.width


def _four_bit_parts(blocks: torch.Tensor) -> list[torch.Tensor]:
    """Scales, offsets (in Q4_0 -8 scales, which is exact) and words of blocks (panels, groups, outputs, bytes)."""
    code_bytes = GROUP_SIZE // 2
    parameters = blocks[..., :-code_bytes].contiguous().view(torch.float16)
    scales = parameters[..., 0]
    offsets = parameters[..., 1] if parameters.shape[-1] == 2 else -8 * scales
    words = blocks[..., -code_bytes:].contiguous().view(torch.int32)
    return [scales, offsets, words.transpose(2, 3)]


def _eight_bit_parts(blocks: torch.Tensor) -> list[torch.Tensor]:
    """Scales and pairs of codes."""
    scales = blocks[..., :2].contiguous().view(torch.float16)
    codes = blocks[..., 2:][..., PAIR_ORDER].contiguous().view(torch.int16)
    return [scales, codes.transpose(2, 3)]
