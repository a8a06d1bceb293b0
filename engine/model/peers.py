"""What the parts of a model need of each other while a step runs."""

from typing import NamedTuple, Protocol

import torch

from vllm_obs.engine.model.partition import WHOLE_MODEL, Partition


class Peers(Protocol):
    """The ranks that hold the other parts. An exchange has to be joined by all of them, in the same order."""

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all shards' parts, on each shard; `part` may be used up."""

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Every shard's part (all of one shape) in order, on the first shard; on the others nothing."""

    def send(self, states: torch.Tensor) -> None:
        """Hand these on to the next stage, which knows their shape. They must not be changed afterwards."""

    def receive(self, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        """What the stage before handed on, float32."""


class Nobody:
    """The peers of a whole model: it asks for nothing."""

    def total(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part]

    def send(self, states: torch.Tensor) -> None:
        raise AssertionError("there is no next stage")

    def receive(self, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        raise AssertionError("there is no stage before")


class Place(NamedTuple):
    """A rank's part of a model, and who has the others."""

    partition: Partition
    peers: Peers


ALONE = Place(WHOLE_MODEL, Nobody())
