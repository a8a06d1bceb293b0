"""StepPrograms: which kernel calls of a step run together, and what is as it was in the step before."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from vllm_obs.engine.kernels.cpu.attention import piece_form
from vllm_obs.engine.kernels.cpu.program import RECORD_FIELDS, Kernels, Records
from vllm_obs.engine.model.attention_pieces import attention_pieces
from vllm_obs.engine.model.compiled_layer import CompiledLayers
from vllm_obs.engine.model.interface import Progress, unwatched
from vllm_obs.engine.model.layer_calls import NUM_FINISH_CALLS, LayerCalls, set_step
from vllm_obs.engine.model.linear_calls import code_bytes
from vllm_obs.engine.model.peers import Peers
from vllm_obs.engine.model.step_tensors import StepRoom, StepTensors

_FEW_TOKENS = 64
_LITTLE_WORK = 10 << 30
"""Up to so many, or while tokens times bytes of weights are no more, a step is one program, and of its layers is
told in the end: it takes tens of milliseconds. Threads that sleep between layers cost as much as a small layer.
"""


class StepPrograms:
    """Runs layers, one program each; where shards share them, up to each sum over the shards."""

    def __init__(self, kernels: Kernels, compiled: CompiledLayers) -> None:
        layers = compiled.layers
        self._kernels = kernels
        self._layers = layers
        self._calls = LayerCalls(compiled, kernels.shape)
        self._final_norm = compiled.final_norm
        self._peers = compiled.peers
        self._piece_form = piece_form(kernels.machine, kernels.shape)
        self._code_bytes = max(code_bytes(each.qkv, each.output, each.gate_up, each.down) for each in layers)
        self.weight_bytes = sum(
            matrix.num_bytes for each in layers for matrix in (each.qkv, each.output, each.gate_up, each.down)
        )
        """What a step reads of the layers' matrices."""
        self._kept: _Kept | None = None

    def run(self, step: StepTensors, rotations: torch.Tensor, num_threads: int) -> torch.Tensor:
        """Normed hidden states at the step's logits indices; all states, as they are, of a stage before the last.

        `step.residual` is used up.
        """
        residual, final_norm, chosen = step.residual, self._final_norm, step.batch.logits_indices
        is_all = final_norm is not None and _is_all(chosen, len(residual))
        if is_all and len(residual) <= _FEW_TOKENS and self._peers is None:
            return self._run_few(step, rotations, num_threads)
        room, last = self._room(residual), len(self._layers) - 1
        pieces = attention_pieces(step.batch, self._piece_form)
        attend = self._calls.attending(step, room, rotations)
        set_step(attend, step, pieces)
        self._ask(step)
        calls = np.concatenate((attend, self._calls.finishing(residual, room, step.caches)), 1)
        if final_norm is None:
            self._run_layers(calls, _Run(residual, room, num_threads), step.on_layer)
            return residual
        if is_all:
            self._run_layers(calls, _Run(residual, room, num_threads, self._calls.final(residual)), step.on_layer)
            return residual
        # In the last layer, from the attention on, only the rows that are asked for matter.
        attend_last = calls[last, : attend.shape[1]]
        self._run_layers(calls[:last], _Run(residual, room, num_threads, attend_last), step.on_layer)
        step.on_layer()
        residual, room.attended = residual.index_select(0, chosen), room.attended.index_select(0, chosen)
        if len(residual):
            rest = _Run(residual, room, num_threads, self._calls.final(residual))
            self._run_layers(self._calls.finishing(residual, room, step.caches)[last:], rest)
        return residual

    def _run_few(self, step: StepTensors, rotations: torch.Tensor, num_threads: int) -> torch.Tensor:
        """`run` where nearly all is as in the step before: as many tokens, of all of which logits are wanted."""
        kept, pieces = self._kept, attention_pieces(step.batch, self._piece_form)
        if kept is None or not kept.fits(step, rotations):
            kept = self._kept = self._keep(step, rotations)
        kept.residual.copy_(step.residual)
        calls = kept.calls.copy()
        layers = calls[:-1].reshape(len(self._layers), -1, RECORD_FIELDS)
        set_step(layers[:, : self._calls.num_attend], step, pieces)
        self._ask(step)
        self._kernels.run(calls, num_threads)
        for _ in self._layers:
            step.on_layer()
        return kept.residual.clone()  # the next step is computed in the same place

    def _ask(self, step: StepTensors) -> None:
        if self._calls.is_asking:
            self._calls.asks.set_step(step.batch)

    def _keep(self, step: StepTensors, rotations: torch.Tensor) -> "_Kept":
        own = replace(step, residual=torch.empty_like(step.residual))
        room = self._room(own.residual)
        attend = self._calls.attending(own, room, rotations)
        finish = self._calls.finishing(own.residual, room, step.caches)
        layers = np.concatenate((attend, finish), 1)
        calls = np.concatenate((layers.reshape(-1, RECORD_FIELDS), self._calls.final(own.residual)))
        return _Kept(step.caches, rotations, own.residual, room, calls)

    def _room(self, residual: torch.Tensor) -> StepRoom:
        return StepRoom(self._layers[0], residual, self._code_bytes, self._peers is not None)

    def _run_layers(self, calls: Records, run: "_Run", on_layer: Progress = unwatched) -> None:
        """Calls of whole layers (layers, calls, fields), or of their ends, and what comes `after`."""
        if self._peers is not None:
            for layer in calls:
                self._run_shared(layer, run, self._peers)
                on_layer()
            self._kernels.run(run.after, run.num_threads)
            return
        num_tokens = len(run.residual)
        if num_tokens <= _FEW_TOKENS or num_tokens * self.weight_bytes <= _LITTLE_WORK:
            self._kernels.run(np.concatenate((calls.reshape(-1, calls.shape[2]), run.after)), run.num_threads)
            for _ in calls:
                on_layer()
            return
        for layer in calls:
            self._kernels.run(layer, run.num_threads)
            on_layer()
        self._kernels.run(run.after, run.num_threads)

    def _run_shared(self, layer: Records, run: "_Run", peers: Peers) -> None:
        """A layer up to each of its two sums over the shards."""
        assert run.room.partial is not None
        partial, middle = run.room.partial[: len(run.residual)], len(layer) - NUM_FINISH_CALLS + 1
        for part in (layer[:middle], layer[middle:]):
            self._kernels.run(part, run.num_threads)
            run.residual.add_(peers.total(partial))


@dataclass(frozen=True)
class _Kept:
    """Where the last step of few tokens was computed, and its calls but for `set_step`."""

    caches: list[torch.Tensor]
    rotations: torch.Tensor
    residual: torch.Tensor
    room: StepRoom
    calls: Records

    def fits(self, step: StepTensors, rotations: torch.Tensor) -> bool:
        """Whether a step has as many tokens, and the same cache."""
        is_same = self.caches is step.caches and self.rotations is rotations
        return is_same and self.residual.shape == step.residual.shape


@dataclass(frozen=True)
class _Run:
    """What layers run on, and calls that come after them."""

    residual: torch.Tensor
    room: StepRoom
    num_threads: int
    after: Records = field(default_factory=lambda: np.empty((0, RECORD_FIELDS), np.int64))


def _is_all(chosen: torch.Tensor, num_tokens: int) -> bool:
    """Whether the logits of every token are asked for, in order."""
    return len(chosen) == num_tokens and bool((chosen.numpy() == np.arange(num_tokens)).all())
