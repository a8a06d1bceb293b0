"""What a kernel call is called in a profile: an operator and its layer, as one number in the call's record."""

from enum import IntEnum
from typing import NamedTuple

_LAYER_STEP = 64


class Operator(IntEnum):
    """What a decoder's kernels do."""

    NORM_INPUT = 1
    LINEAR_QKV = 2
    NORM_QUERY = 3
    NORM_KEY = 4
    ROTATE = 5
    ATTENTION = 6
    LINEAR_OUTPUT = 7
    NORM_POST_ATTENTION = 8
    LINEAR_GATE_UP = 9
    LINEAR_DOWN = 10
    NORM_FINAL = 11
    LINEAR_LM_HEAD = 12

    @property
    def title(self) -> str:
        """As people read it: linear.gate_up."""
        family, _, part = self.name.lower().partition("_")
        return f"{family}.{part}" if part else family


class OperatorCall(NamedTuple):
    """An operator's name, and its layer from 0 on; -1 for what belongs to none."""

    name: str
    layer: int


def label(operator: Operator, layer: int = -1) -> int:
    """The number."""
    return (layer + 1) * _LAYER_STEP + operator


def read_label(number: int) -> OperatorCall:
    """What a number stands for."""
    layer, operator = divmod(number, _LAYER_STEP)
    known = operator in set(Operator)
    return OperatorCall(Operator(operator).title if known else "kernel", layer - 1)
