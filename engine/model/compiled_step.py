"""The kernel calls of one step: a template made at load, completed with the step's addresses and counts."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.attention import queries_a_piece
from vllm_obs.engine.kernels.cpu.linear_finish import Finish
from vllm_obs.engine.kernels.cpu.program import LABEL_FIELD, RECORD_FIELDS, Kernel, Kernels, Records, record
from vllm_obs.engine.model.interface import Progress, unwatched
from vllm_obs.engine.model.linear_calls import Matrix, code_bytes, linear_call, room_for_codes, set_linear
from vllm_obs.engine.model.operator_label import Operator, label
from vllm_obs.engine.model.peers import Peers

Pieces = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CompiledLayer:
    """A layer's weights as kernels take them: norms and biases in float32, matrices packed.

    `qkv_bias` is padded as the matrix is. `window` is in tokens, 0 for none.
    """

    input_norm: torch.Tensor
    qkv: Matrix
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    post_attention_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    window: int


@dataclass(frozen=True)
class CompiledLayers:
    """A model's layers, or those of one stage of it, the first of which has the number `first`.

    Without a `final_norm` the model goes on elsewhere. Where shards share each matrix, `peers` have the others.
    """

    layers: list[CompiledLayer]
    eps: float
    final_norm: torch.Tensor | None
    first: int = 0
    peers: Peers | None = None


@dataclass(frozen=True)
class StepTensors:
    """What a step computes on. residual: float32 (T, hidden). positions: int64 (T,). caches: one a layer.

    `on_layer` is called after each layer.
    """

    residual: torch.Tensor
    positions: torch.Tensor
    batch: AttentionBatch
    caches: list[torch.Tensor]
    on_layer: Progress = unwatched


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


_FEW_TOKENS = 64
"""Up to so many a step is one program, and of its layers is told in the end: it takes tens of milliseconds."""


class StepPrograms:
    """Runs layers, one program each; where shards share them, up to each sum over the shards."""

    def __init__(self, kernels: Kernels, compiled: CompiledLayers) -> None:
        layers, first_layer = compiled.layers, compiled.first
        self._kernels = kernels
        self._layers = layers
        self._final_norm = compiled.final_norm
        self._peers = compiled.peers
        self._eps = int(np.float32(compiled.eps).view(np.int32))
        self._shape = kernels.shape
        self._code_bytes = max(code_bytes(each.qkv, each.output, each.gate_up, each.down) for each in layers)
        self._has_head_norm = layers[0].query_norm is not None
        self._attend_template = np.stack([self._attend_calls(layer) for layer in layers])
        self._finish_template = np.stack([self._finish_calls(layer) for layer in layers])
        for template, operators in (
            (self._attend_template, _ATTEND_OPERATORS if self._has_head_norm else _PLAIN_ATTEND_OPERATORS),
            (self._finish_template, _FINISH_OPERATORS),
        ):
            for number in range(len(layers)):
                labels = [label(operator, first_layer + number) for operator in operators]
                template[number, :, LABEL_FIELD] = labels

    def run(self, step: StepTensors, rotations: torch.Tensor, num_threads: int) -> torch.Tensor:
        """Normed hidden states at the step's logits indices; all states, as they are, of a stage before the last.

        `step.residual` is used up.
        """
        residual, room = step.residual, self._room(step.residual)
        pieces = attention_pieces(step.batch, queries_a_piece(self._kernels.machine, self._shape))
        attend = self._attending(step, room, rotations, pieces)
        calls = np.concatenate((attend, self._finishing(residual, room)), 1)
        last, final_norm, chosen = len(self._layers) - 1, self._final_norm, step.batch.logits_indices
        if final_norm is None:
            self._run_layers(calls, _Run(residual, room, num_threads), step.on_layer)
            return residual
        if _is_all(chosen, len(residual)):
            self._run_layers(calls, _Run(residual, room, num_threads, self._final_call(residual)), step.on_layer)
            return residual
        # In the last layer, from the attention on, only the rows that are asked for matter.
        attend_last = calls[last, : attend.shape[1]]
        self._run_layers(calls[:last], _Run(residual, room, num_threads, attend_last), step.on_layer)
        step.on_layer()
        residual, room.attended = residual.index_select(0, chosen), room.attended.index_select(0, chosen)
        if len(residual):
            rest = _Run(residual, room, num_threads, self._final_call(residual))
            self._run_layers(self._finishing(residual, room)[last:], rest)
        return residual

    def _room(self, residual: torch.Tensor) -> "_Room":
        return _Room(self._layers[0], residual, self._code_bytes, self._peers is not None)

    def _run_layers(self, calls: Records, run: "_Run", on_layer: Progress = unwatched) -> None:
        """Calls of whole layers (layers, calls, fields), or of their ends, and what comes `after`."""
        if self._peers is not None:
            for layer in calls:
                self._run_shared(layer, run, self._peers)
                on_layer()
            self._kernels.run(run.after, run.num_threads)
            return
        if len(run.residual) <= _FEW_TOKENS:
            # Threads that go back to sleep between layers cost as much as a small layer.
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
        partial, middle = run.room.partial[: len(run.residual)], len(layer) - len(_FINISH_OPERATORS) + 1
        for part in (layer[:middle], layer[middle:]):
            self._kernels.run(part, run.num_threads)
            run.residual.add_(peers.total(partial))

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
        to_stream = Finish.ADD if self._peers is None else Finish.STORE
        return np.stack(
            [
                linear_call(layer.output, to_stream, 0),
                record(Kernel.NORM, {3: norm.data_ptr(), 7: len(norm), 8: 1, 10: self._eps}),
                linear_call(layer.gate_up, Finish.SILU_MUL, 0),
                linear_call(layer.down, to_stream, 0),
            ]
        )

    def _attending(self, step: StepTensors, room: "_Room", rotations: torch.Tensor, pieces: Pieces) -> Records:
        shape, batch = self._shape, step.batch
        num_tokens = len(step.residual)
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
        rotate[:, 1:5] = qkv, qkv_stride, rotations.data_ptr(), step.positions.data_ptr()
        rotate[:, 5], rotate[:, 6:8] = caches, (batch.slot_mapping.data_ptr(), num_tokens)
        tables = batch.block_tables
        attend[:, 1:3], attend[:, 3] = (qkv, qkv_stride), caches
        attend[:, 4:8] = tables.data_ptr(), 8 * tables.stride(0), pieces.ctypes.data, len(pieces)
        attend[:, 8:10] = room.attended.data_ptr(), 4 * room.attended.shape[1]
        return calls

    def _finishing(self, residual: torch.Tensor, room: "_Room") -> Records:
        calls = self._finish_template.copy()
        target = residual if room.partial is None else room.partial
        set_linear(calls[:, 0], room.attended, target, room.codes)
        _set_norm(calls[:, 1], residual, room.normed)
        set_linear(calls[:, 2], room.normed, room.gated, room.codes)
        set_linear(calls[:, 3], room.gated, target, room.codes)
        calls[:, 2:, 7] = len(residual)  # the room may be for more rows
        return calls

    def _final_call(self, residual: torch.Tensor) -> Records:
        weight = self._final_norm
        assert weight is not None
        call = record(Kernel.NORM, {3: weight.data_ptr(), 7: len(weight), 8: 1, 10: self._eps})[None]
        call[:, LABEL_FIELD] = label(Operator.NORM_FINAL)
        _set_norm(call, residual, residual)
        return call


class _Room:
    """Where a step keeps what passes between kernels; float32, one row a token.

    `partial` is a shard's part of what is added to the residual stream.
    """

    def __init__(self, layer: CompiledLayer, residual: torch.Tensor, num_code_bytes: int, is_shared: bool) -> None:
        num_tokens = len(residual)
        self.normed = torch.empty_like(residual)
        self.partial = torch.empty_like(residual) if is_shared else None
        self.qkv = residual.new_empty(num_tokens, layer.qkv.padded_outputs)
        self.attended = residual.new_empty(num_tokens, layer.output.num_inputs)
        self.gated = residual.new_empty(num_tokens, layer.down.num_inputs)
        self.codes = room_for_codes(num_tokens, num_code_bytes)


@dataclass(frozen=True)
class _Run:
    """What layers run on, and calls that come after them."""

    residual: torch.Tensor
    room: _Room
    num_threads: int
    after: Records = field(default_factory=lambda: np.empty((0, RECORD_FIELDS), np.int64))


def _is_all(chosen: torch.Tensor, num_tokens: int) -> bool:
    """Whether the logits of every token are asked for, in order."""
    return len(chosen) == num_tokens and bool((chosen == torch.arange(num_tokens)).all())


def attention_pieces(batch: AttentionBatch, queries_a_piece: int) -> Pieces:
    """The rows' queries in pieces of so many, and what is left of a row one by one.

    int64 (pieces, 4) of first token, queries, first query's position, row.
    """
    lengths, ends = np.array(batch.query_lens, np.int64), np.array(batch.seq_lens, np.int64)
    num_whole, num_single = np.divmod(lengths, queries_a_piece)
    counts = num_whole + num_single
    rows = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_whole = number < num_whole[rows]
    begin = np.where(is_whole, number * queries_a_piece, number + num_whole[rows] * (queries_a_piece - 1))
    starts = np.cumsum(lengths) - lengths
    sizes = np.where(is_whole, queries_a_piece, 1)
    columns = (starts[rows] + begin, sizes, (ends - lengths)[rows] + begin, rows)
    return np.ascontiguousarray(np.stack(columns, 1))


def _set_norm(calls: Records, x: torch.Tensor, out: torch.Tensor) -> None:
    calls[:, 1:3] = x.data_ptr(), 4 * x.shape[1]
    calls[:, 4:7] = out.data_ptr(), 4 * out.shape[1], len(x)
