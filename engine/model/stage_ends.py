"""Where a stage's residual stream comes from and where it goes: other stages, but at the two ends of a model."""

from typing import Protocol

import torch

from vllm_obs.engine.model.peers import Peers


class Inlet(Protocol):
    """Where the residual stream comes from."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids (T,) → (T, hidden) float32."""


class Outlet(Protocol):
    """Where the residual stream goes after the last layer."""

    def __call__(self, residual: torch.Tensor, /) -> torch.Tensor:
        """(R, hidden) float32 → what `forward` returns."""


class ReceivedStates:
    """The inlet of a later stage: what the stage before made of the same tokens."""

    def __init__(self, hidden_size: int, peers: Peers) -> None:
        self._hidden_size = hidden_size
        self._peers = peers

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._peers.receive((len(token_ids), self._hidden_size), token_ids.device)


class SentStates:
    """The outlet of a stage that is not the last: nothing is left here of what is handed on."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def __call__(self, residual: torch.Tensor) -> torch.Tensor:
        self._peers.send(residual)
        return residual.new_empty(0, residual.shape[1])
