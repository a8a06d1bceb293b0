"""A matrix of whole numbers, or of a GGUF file's own blocks, in panels that a kernel reads as one stream."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.cpu.block_pack import CODE_BYTES, compiled_block_pack
from vllm_obs.engine.kernels.cpu.block_steps import eight_bit_steps, four_bit_steps, number_steps
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_tile import panel_outputs
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE, PAIR_ORDER

FORMS = {"Q4_0": "q4", "Q4_1": "q4", "Q8_0": "q8"}
"""What kernels there are, by the types of a GGUF file that they read."""
NUMBERS = "int16"
"""The kernel for all that is not blocks."""


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix (out, in): uint8 (panels, bytes): a panel's scales (float32), then its blocks by groups of inputs.

    A block's scale and offset are int16, in steps of its output's scale (see block_steps). q4: scales, offsets,
    and 4-bit codes as they lie in the file, the words of the same inputs together. q8: scales, and pairs of 8-bit
    codes in PAIR_ORDER. int16: pairs of 16-bit codes in PAIR_ORDER. Outputs that do not exist are zeros.
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
        blocks, form = rows.contiguous().view(num_outputs, num_groups, block_bytes), FORMS[type_name]
        kernels = compiled_block_pack(form, machine)
        steps = (four_bit_steps if form == "q4" else eight_bit_steps)(blocks, *kernels.sums(blocks))
        parts = [_padded(part.flatten(1), width) for part in steps.of_blocks]
        own_bytes, code_bytes = 2 * width * len(parts), CODE_BYTES[form] * width
        scale_bytes, group_bytes = 4 * width, own_bytes + code_bytes
        panels = torch.zeros(len(parts[0]) // width, scale_bytes + num_groups * group_bytes, dtype=torch.uint8)
        panels[:, :scale_bytes] = _padded(steps.output_scales[:, None], width).view(-1, width).view(torch.uint8)
        groups = panels[:, scale_bytes:].view(-1, num_groups, group_bytes)
        for number, part in enumerate(parts):
            groups[..., 2 * width * number : 2 * width * (number + 1)] = _by_group(part[..., None], width)
        kernels.place(blocks, panels, scale_bytes + own_bytes, group_bytes, width)
        return cls(panels, num_outputs, GROUP_SIZE * num_groups, form, width)

    @classmethod
    def round(cls, matrix: torch.Tensor, machine: Machine) -> "BlockMatrix":
        """From a float matrix (out, in), whose inputs are a multiple of GROUP_SIZE."""
        width, (num_outputs, num_inputs) = panel_outputs(machine), matrix.shape
        groups = _padded(matrix.float(), width).view(-1, num_inputs // GROUP_SIZE, GROUP_SIZE)
        steps = number_steps(groups)
        pairs = _in_pair_order(steps.of_blocks[0]).view(torch.int32)
        return cls(_panels(steps.output_scales, [pairs], width), num_outputs, num_inputs, NUMBERS, width)

    @property
    def num_bytes(self) -> int:
        """What a product reads of it."""
        return self.panels.nbytes

    @property
    def padded_outputs(self) -> int:
        """Outputs with those of the last panel that do not exist."""
        return self.panels.shape[0] * self.width


def _padded(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Rows (out, anything) with rows of zeros up to whole panels."""
    padded = rows.new_zeros(-(-len(rows) // width) * width, rows.shape[1])
    padded[: len(rows)] = rows
    return padded


def _panels(scales: torch.Tensor, parts: list[torch.Tensor], width: int) -> torch.Tensor:
    """Scales (out,) and what lies in each group, (out, groups, numbers) each, side by side."""
    by_group = torch.cat([_by_group(part, width) for part in parts], 2).flatten(1)
    return torch.cat([scales.view(-1, width).view(torch.uint8), by_group], 1)


def _by_group(part: torch.Tensor, width: int) -> torch.Tensor:
    """(out, groups, numbers) → uint8 (panels, groups, bytes), the outputs of a panel side by side."""
    panels = part.view(-1, width, *part.shape[1:])
    return panels.permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2)


def _in_pair_order(groups: torch.Tensor) -> torch.Tensor:
    """Groups' numbers (out, groups, GROUP_SIZE) in the order in which rows have theirs."""
    return groups.index_select(2, torch.tensor(PAIR_ORDER))
