"""Whether each kernel's results are those of float64, on this card, in configurations that it runs with."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from gpu_attention_checks import attention_checks
from gpu_card import Card
from gpu_layer_checks import layer_checks
from gpu_sampling_checks import sampling_checks


class Check(NamedTuple):
    """A kernel on one input: `run` gives the largest difference from float64, `allowed` is the most it may be."""

    name: str
    allowed: float
    run: Callable[[], float]

    def row(self) -> dict[str, Any]:
        """What came of it; what does not run at all is a failure with its cause."""
        torch.manual_seed(0)
        row: dict[str, Any] = {"check": self.name, "allowed": self.allowed, "difference": None, "error": ""}
        try:
            row["difference"] = self.run()
        except Exception as error:  # whatever the compiler or the driver has to say
            row["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        row["is_right"] = row["difference"] is not None and row["difference"] <= self.allowed
        return row


def checks_of(card: Card) -> Iterator[Check]:
    """All of them, always in the same order."""
    for name, allowed, run in (*attention_checks(card), *layer_checks(card), *sampling_checks(card)):
        yield Check(name, allowed, run)
