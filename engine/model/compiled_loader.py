"""From tensors to a decoder of compiled kernels, where the model and the machine allow one."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from vllm_obs.engine.config import ModelArchitecture, VllmConfig
from vllm_obs.engine.kernels.cpu.block_matrix import NUMBERS, BlockMatrix
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape, cache_form
from vllm_obs.engine.kernels.cpu.jit import Machine, this_machine
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix, paired_order
from vllm_obs.engine.kernels.cpu.linear_tile import UNROLLED, panel_outputs
from vllm_obs.engine.kernels.cpu.program import Kernels, compiled_kernels
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE
from vllm_obs.engine.model.block_weights import BlockEmbedding
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.compiled_layer import CompiledLayer, CompiledLayers
from vllm_obs.engine.model.compiled_memory import move_in_step_order
from vllm_obs.engine.model.compiled_step import StepPrograms
from vllm_obs.engine.model.layer_tensors import LayerTensors
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.linear_calls import Matrix, PackedHead
from vllm_obs.engine.model.parallel_load import each_layer
from vllm_obs.engine.model.peers import ALONE, Place
from vllm_obs.engine.model.rope import rotation_table
from vllm_obs.engine.model.sharded import embedding_of, head_of
from vllm_obs.engine.model.stage_ends import Inlet, ReceivedStates, SentStates
from vllm_obs.engine.model.stored_matrix import MatrixSource, StoredMatrix, packed_blocks
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from vllm_obs.engine.model.weights import Weights
from vllm_obs.engine.startup_phases import startup_part


def load_compiled(config: VllmConfig, weights: Weights, place: Place = ALONE) -> CompiledDecoder | None:
    """The decoder, or a rank's part of it; None where this machine or its shapes have no compiled kernels."""
    machine = this_machine()
    shape = place.partition.local(config.model.architecture)
    if machine is None or not _fits(config, shape, weights, machine):
        return None
    source = MatrixSource.of(config.model, weights, place.partition)
    try:
        return _load(_Builder(config, source, place, machine, _FINEST[config.model.dtype]))
    except _OutOfRangeError:
        # Every rank by itself: what it hands on is float32 whatever it holds.
        return _load(_Builder(config, source, place, machine, "bfloat16"))


_FINEST = {"float32": "float32", "float16": "float16", "bfloat16": "float16"}
"""What numbers are held in, by the dtype asked for. All arithmetic is in float32, so of the 16-bit ones the one
with three more bits is the better one, as long as the numbers are in its range.
"""


class _OutOfRangeError(Exception):
    """A weight is beyond what float16 can hold."""


def _load(builder: "_Builder") -> CompiledDecoder:
    form = cache_form(builder.stored_name, builder.machine)
    shape = _cache_shape(builder.config, builder.local, form)
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
        kernels = pool.submit(compiled_kernels, builder.machine, shape, builder.forms())
        return builder.decoder(kernels)


def _cache_shape(config: VllmConfig, model: ModelArchitecture, stored: str) -> CacheShape:
    return CacheShape(model.num_heads, model.num_kv_heads, model.head_dim, config.cache.block_size, stored)


def _fits(config: VllmConfig, model: ModelArchitecture, weights: Weights, machine: Machine) -> bool:
    shape = _cache_shape(config, model, "float32")
    biases = {name.rpartition(".")[0].rpartition(".")[2] for name in weights.shapes() if name.endswith(".bias")}
    return (
        config.model.device == "cpu"
        and shape.fits(machine)
        and model.hidden_size % panel_outputs(machine) == 0
        and 2 * model.intermediate_size % panel_outputs(machine) == 0
        and model.num_heads * model.head_dim % UNROLLED == 0
        and biases <= {"q_proj", "k_proj", "v_proj"}
    )


@dataclass(frozen=True)
class _Builder:
    config: VllmConfig
    source: MatrixSource
    place: Place
    machine: Machine
    stored_name: str

    @property
    def stored(self) -> torch.dtype:
        """What an embedding is held in, and keys and values too where there is no better form."""
        dtype: torch.dtype = getattr(torch, self.stored_name)
        return dtype

    @property
    def tensors(self) -> LayerTensors:
        """Tensors of numbers."""
        return self.source.tensors

    @property
    def local(self) -> ModelArchitecture:
        """The shape of what this rank has."""
        return self.place.partition.local(self._model)

    @property
    def _model(self) -> ModelArchitecture:
        return self.config.model.architecture

    def forms(self) -> tuple[str, ...]:
        """What its matrices are held in."""
        words = EMBEDDING if self._model.tie_word_embeddings else LM_HEAD
        return self.source.forms(self.place.partition.layers(self._model), words, self.number_form)

    @property
    def number_form(self) -> str:
        """What matrices that are no blocks are held in: whole numbers of 16 bits where inputs are whole groups."""
        local = self.local
        inputs = (local.hidden_size, local.num_heads * local.head_dim, local.intermediate_size)
        is_rounded = self.stored_name != "float32" and all(size % GROUP_SIZE == 0 for size in inputs)
        return NUMBERS if is_rounded else self.stored_name

    def decoder(self, kernels: "Future[Kernels]") -> CompiledDecoder:
        """All of it; the kernels are compiled meanwhile."""
        partition, peers = self.place
        own_layers = partition.layers(self._model)
        with startup_part("pack embedding"):
            inlet, matrix = self._inlet_and_head()
        with startup_part("pack layers"):
            layers = each_layer(lambda number: self._layer(own_layers[number]), len(own_layers))
        with startup_part("move weights"):
            move_in_step_order(layers, matrix)
        with startup_part("wait for kernels"):
            compiled = kernels.result()
        return CompiledDecoder(
            dtype=getattr(torch, compiled.shape.stored),
            inlet=inlet,
            rotations=rotation_table(self._model, self.config.model.max_model_len),
            num_layers=len(layers),
            programs=StepPrograms(
                compiled,
                CompiledLayers(
                    layers,
                    self._model.rms_norm_eps,
                    self._norm(FINAL_NORM) if partition.is_last_stage else None,
                    own_layers.start,
                    peers if partition.num_shards > 1 else None,
                ),
            ),
            lm_head=self._head(None if matrix is None else PackedHead(compiled, matrix)),
            kernels=compiled,
            outlet=None if partition.is_last_stage else SentStates(peers),
        )

    def _inlet_and_head(self) -> tuple[Inlet, Matrix | None]:
        """Where the residual stream comes from, and the matrix of the head, if there are words for it here."""
        (partition, peers), is_tied = self.place, self._model.tie_word_embeddings
        inlet: Inlet = ReceivedStates(self._model.hidden_size, peers)
        words: StoredMatrix | None = None
        if partition.is_first_stage or (partition.is_last_stage and is_tied):
            words = self._words(EMBEDDING)
        if partition.is_first_stage:
            assert words is not None
            inlet = self._embedding(words)
        if partition.is_last_stage and not is_tied:
            words = self._words(LM_HEAD)
        if not partition.is_last_stage or words is None or not len(words.rows):
            return inlet, None
        return inlet, self._packed(words)

    def _words(self, name: str) -> StoredMatrix:
        """Numbers as they are held."""
        words = self.source.words(name)
        return words if words.type_name is not None else StoredMatrix(self._stored(words.rows), None)

    def _embedding(self, words: StoredMatrix) -> Inlet:
        if words.type_name == "Q8_0" and self.place.partition.num_shards == 1:
            return BlockEmbedding(words.rows)
        values = words.rows if words.type_name is None else self._stored(self.tensors.words(EMBEDDING))
        return embedding_of(values, self.place, self._model)

    def _head(self, own_words: PackedHead | None) -> Linear | None:
        return head_of(own_words, self.place, self._model) if self.place.partition.is_last_stage else None

    def _layer(self, number: int) -> CompiledLayer:
        prefix, source, tensors = layer_prefix(number), self.source, self.tensors
        matrix, bias = source.qkv(prefix)
        qkv = self._packed(matrix)
        pairs = paired_order(self.local.intermediate_size, self.machine)
        return CompiledLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=qkv,
            qkv_bias=None if bias is None else _padded(bias, qkv.padded_outputs),
            query_norm=_float(tensors.head_norm(prefix + "self_attn.q_norm.weight")),
            key_norm=_float(tensors.head_norm(prefix + "self_attn.k_norm.weight")),
            output=self._packed(source.output(prefix)),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self._packed(source.gate_up(prefix, pairs)),
            down=self._packed(source.down(prefix)),
            window=tensors.window(number) or 0,
        )

    def _packed(self, matrix: StoredMatrix) -> Matrix:
        if matrix.type_name is not None:
            return packed_blocks(matrix, self.machine)
        stored = self._stored(matrix.rows)
        if self.number_form == NUMBERS:
            return BlockMatrix.round(matrix.rows, self.machine)
        return PackedMatrix.pack(stored, self.machine)

    def _stored(self, matrix: torch.Tensor) -> torch.Tensor:
        converted = matrix.to(self.stored)
        if self.stored == torch.float16 and not converted.isfinite().all():
            raise _OutOfRangeError
        return converted

    def _norm(self, name: str) -> torch.Tensor:
        return self.tensors.weights.read(name).float().contiguous()


def _float(weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if weight is None else weight.float().contiguous()


def _padded(bias: torch.Tensor, size: int) -> torch.Tensor:
    padded = bias.new_zeros(size)
    padded[: len(bias)] = bias
    return padded
