"""The kernel calls of layers: a template made at load, completed with a step's addresses and counts."""

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.kernels.cpu.block_matrix import BlockMatrix
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.linear_finish import Finish
from vllm_obs.engine.kernels.cpu.program import ASKED_FIELD, LABEL_FIELD, Kernel, Records, record
from vllm_obs.engine.model.attention_pieces import Pieces
from vllm_obs.engine.model.compiled_layer import CompiledLayer, CompiledLayers
from vllm_obs.engine.model.linear_calls import linear_call, set_linear
from vllm_obs.engine.model.operator_label import Operator, label
from vllm_obs.engine.model.step_asks import StepAsks
from vllm_obs.engine.model.step_tensors import StepRoom, StepTensors

_PLAIN_ATTEND_OPERATORS = (Operator.NORM_INPUT, Operator.LINEAR_QKV, Operator.ROTATE, Operator.ATTENTION)
_HEAD_NORMS = (Operator.NORM_QUERY, Operator.NORM_KEY)
_ATTEND_OPERATORS = (*_PLAIN_ATTEND_OPERATORS[:2], *_HEAD_NORMS, *_PLAIN_ATTEND_OPERATORS[2:])
_FINISH_OPERATORS = (
    Operator.LINEAR_OUTPUT,
    Operator.NORM_POST_ATTENTION,
    Operator.LINEAR_GATE_UP,
    Operator.LINEAR_DOWN,
)
"""What the calls of a layer are called, in their order."""
_FINISH_ASKS = ((0, "output"), (2, "gate_up"), (3, "down"))
"""Which of them are products, by what StepAsks calls them."""
NUM_FINISH_CALLS = len(_FINISH_OPERATORS)
"""Shards are summed after the first and after the last of them."""


class LayerCalls:
    """Of each layer two parts: up to its attention, and the rest, which may be for fewer rows."""

    def __init__(self, compiled: CompiledLayers, shape: CacheShape) -> None:
        layers = compiled.layers
        self._shape = shape
        self._final_norm = compiled.final_norm
        self._is_shared = compiled.peers is not None
        self.asks = StepAsks(layers[0], shape)
        """What products ask for; `set_step` says it anew, where `is_asking`."""
        self.is_asking = any(not each.window and isinstance(each.gate_up, BlockMatrix) for each in layers)
        self._eps = int(np.float32(compiled.eps).view(np.int32))
        self._has_head_norm = layers[0].query_norm is not None
        self._attend_template = np.stack([self._attend_calls(layer) for layer in layers])
        self._finish_template = np.stack([self._finish_calls(layer) for layer in layers])
        for template, operators in (
            (self._attend_template, _ATTEND_OPERATORS if self._has_head_norm else _PLAIN_ATTEND_OPERATORS),
            (self._finish_template, _FINISH_OPERATORS),
        ):
            for number in range(len(layers)):
                labels = [label(operator, compiled.first + number) for operator in operators]
                template[number, :, LABEL_FIELD] = labels
        windows = np.array([layer.window for layer in layers])
        self._set_asks(self._attend_template[:, 1], "qkv", windows)
        for number, name in _FINISH_ASKS:
            self._set_asks(self._finish_template[:-1, number], name, windows[1:])
        self.num_attend = self._attend_template.shape[1]
        """How many calls a layer's first part is."""

    def attending(self, step: StepTensors, room: StepRoom, rotations: torch.Tensor) -> Records:
        """All layers up to their attention (layers, calls, fields), but for `set_step`."""
        shape, num_tokens = self._shape, len(step.residual)
        qkv, qkv_stride = room.qkv.data_ptr(), 4 * room.qkv.shape[1]
        calls = self._attend_template.copy()
        _set_norm(calls[:, 0], step.residual, room.normed)
        set_linear(calls[:, 1], room.normed, room.qkv, room.codes)
        if self._has_head_norm:
            keys = qkv + 4 * shape.num_heads * shape.head_dim
            calls[:, 2, 1], calls[:, 3, 1] = qkv, keys
            calls[:, 2, 4], calls[:, 3, 4] = qkv, keys
            calls[:, 2:4, 2] = calls[:, 2:4, 5] = qkv_stride
            calls[:, 2:4, 6] = num_tokens
        rotate, attend = calls[:, -2], calls[:, -1]
        caches = [cache.data_ptr() for cache in step.caches]
        rotate[:, 1:4] = qkv, qkv_stride, rotations.data_ptr()
        rotate[:, 5], rotate[:, 7] = caches, num_tokens
        attend[:, 1:3], attend[:, 3] = (qkv, qkv_stride), caches
        attend[:, 8:10] = room.attended.data_ptr(), 4 * room.attended.shape[1]
        calls[:, 1, ASKED_FIELD + 1] = caches
        return calls

    def finishing(self, residual: torch.Tensor, room: StepRoom, caches: list[torch.Tensor]) -> Records:
        """The rest of all layers, likewise."""
        calls = self._finish_template.copy()
        target = residual if room.partial is None else room.partial
        set_linear(calls[:, 0], room.attended, target, room.codes)
        _set_norm(calls[:, 1], residual, room.normed)
        set_linear(calls[:, 2], room.normed, room.gated, room.codes)
        set_linear(calls[:, 3], room.gated, target, room.codes)
        calls[:, 2:, 7] = len(residual)  # the room may be for more rows
        next_caches = [cache.data_ptr() for cache in caches[1:]]
        for number, _ in _FINISH_ASKS:
            calls[:-1, number, ASKED_FIELD + 1] = next_caches
        return calls

    def _set_asks(self, calls: Records, name: str, windows: npt.NDArray[np.int64]) -> None:
        """Of products before attention with these windows: of keys in one there are few."""
        calls[:, ASKED_FIELD] = np.where(windows == 0, self.asks.address(name), 0)

    def final(self, residual: torch.Tensor) -> Records:
        """The norm after the last layer."""
        weight = self._final_norm
        assert weight is not None
        call = record(Kernel.NORM, {3: weight.data_ptr(), 7: len(weight), 8: 1, 10: self._eps})[None]
        call[:, LABEL_FIELD] = label(Operator.NORM_FINAL)
        _set_norm(call, residual, residual)
        return call

    def _attend_calls(self, layer: CompiledLayer) -> Records:
        """A layer up to its attention, with what does not change from step to step."""
        shape = self._shape
        qkv, finish = layer.qkv, Finish.STORE if layer.qkv_bias is None else Finish.BIAS
        num_hidden = len(layer.input_norm)
        calls = [
            record(Kernel.NORM, {3: layer.input_norm.data_ptr(), 7: num_hidden, 8: 1, 10: self._eps}),
            linear_call(qkv, finish, 0 if layer.qkv_bias is None else layer.qkv_bias.data_ptr()),
        ]
        if layer.query_norm is not None and layer.key_norm is not None:
            for weight, num_heads in ((layer.query_norm, shape.num_heads), (layer.key_norm, shape.num_kv_heads)):
                fields = {7: shape.head_dim, 8: num_heads, 9: 4 * shape.head_dim, 10: self._eps}
                calls.append(record(Kernel.NORM, {3: weight.data_ptr(), **fields}))
        calls += [record(Kernel.ROTATE, {}), record(Kernel.ATTEND, {10: layer.window})]
        return np.stack(calls)

    def _finish_calls(self, layer: CompiledLayer) -> Records:
        """The rest of a layer, likewise."""
        norm = layer.post_attention_norm
        to_stream = Finish.STORE if self._is_shared else Finish.ADD
        return np.stack(
            [
                linear_call(layer.output, to_stream, 0),
                record(Kernel.NORM, {3: norm.data_ptr(), 7: len(norm), 8: 1, 10: self._eps}),
                linear_call(layer.gate_up, Finish.SILU_MUL, 0),
                linear_call(layer.down, to_stream, 0),
            ]
        )


def set_step(calls: Records, step: StepTensors, pieces: Pieces) -> None:
    """What is another address or number in each step, in calls that end with rotation and attention."""
    rotate, attend, tables = calls[:, -2], calls[:, -1], step.batch.block_tables
    rotate[:, 4], rotate[:, 6] = step.positions.data_ptr(), step.batch.slot_mapping.data_ptr()
    attend[:, 4:6] = tables.data_ptr(), 8 * tables.stride(0)
    attend[:, 6:8] = pieces.pieces.ctypes.data, len(pieces.pieces)
    attend[:, 12] = pieces.queries.ctypes.data


def _set_norm(calls: Records, x: torch.Tensor, out: torch.Tensor) -> None:
    calls[:, 1:3] = x.data_ptr(), 4 * x.shape[1]
    calls[:, 4:7] = out.data_ptr(), 4 * out.shape[1], len(x)
