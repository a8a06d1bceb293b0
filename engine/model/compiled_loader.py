"""From tensors to a decoder of compiled kernels, where the model and the machine allow one."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from vllm_obs.engine.config import ModelArchitecture, VllmConfig
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.jit import Machine, this_machine
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix, paired_order
from vllm_obs.engine.kernels.cpu.linear_tile import UNROLLED, panel_outputs
from vllm_obs.engine.kernels.cpu.program import Kernels, compiled_kernels
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.compiled_step import CompiledLayer, StepPrograms
from vllm_obs.engine.model.layer_tensors import LayerTensors
from vllm_obs.engine.model.parallel_load import each_layer
from vllm_obs.engine.model.rope import rotation_table
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from vllm_obs.engine.model.weights import Weights
from vllm_obs.engine.startup_phases import startup_part


def load_compiled(config: VllmConfig, weights: Weights) -> CompiledDecoder | None:
    """The decoder, or None where this machine or the model's shapes have no compiled kernels."""
    machine = this_machine()
    if machine is None or not _fits(config, weights, machine):
        return None
    tensors = LayerTensors(config.model.architecture, weights)
    try:
        return _load(config, tensors, machine, _FINEST[config.model.dtype])
    except _OutOfRangeError:
        return _load(config, tensors, machine, "bfloat16")


_FINEST = {"float32": "float32", "float16": "float16", "bfloat16": "float16"}
"""What numbers are held in, by the dtype asked for. All arithmetic is in float32, so of the 16-bit ones the one
with three more bits is the better one, as long as the numbers are in its range.
"""


class _OutOfRangeError(Exception):
    """A weight is beyond what float16 can hold."""


def _load(config: VllmConfig, tensors: LayerTensors, machine: Machine, stored: str) -> CompiledDecoder:
    shape = _cache_shape(config, stored)
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as pool:
        kernels = pool.submit(compiled_kernels, machine, shape, stored)
        return _Builder(config, tensors, machine, getattr(torch, stored)).decoder(kernels)


def _cache_shape(config: VllmConfig, stored: str) -> CacheShape:
    model = config.model.architecture
    return CacheShape(model.num_heads, model.num_kv_heads, model.head_dim, config.cache.block_size, stored)


def _fits(config: VllmConfig, weights: Weights, machine: Machine) -> bool:
    model, shape = config.model.architecture, _cache_shape(config, "float32")
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
    tensors: LayerTensors
    machine: Machine
    stored: torch.dtype

    @property
    def _model(self) -> ModelArchitecture:
        return self.config.model.architecture

    def decoder(self, kernels: "Future[Kernels]") -> CompiledDecoder:
        """All of it; the kernels are compiled meanwhile."""
        with startup_part("pack embedding"):
            embedding = self._stored(self.tensors.weights.read(EMBEDDING))
            tied = self._model.tie_word_embeddings
            head = self._packed(embedding if tied else self.tensors.weights.read(LM_HEAD))
        with startup_part("pack layers"):
            layers = each_layer(self._layer, self._model.num_layers)
        with startup_part("wait for kernels"):
            compiled = kernels.result()
        return CompiledDecoder(
            dtype=self.stored,
            embedding=embedding,
            rotations=rotation_table(self._model, self.config.model.max_model_len),
            num_layers=self._model.num_layers,
            programs=StepPrograms(compiled, layers, self._norm(FINAL_NORM), self._model.rms_norm_eps),
            lm_head=head,
            kernels=compiled,
        )

    def _layer(self, number: int) -> CompiledLayer:
        prefix, tensors = layer_prefix(number), self.tensors
        matrix, bias = tensors.qkv(prefix + "self_attn.")
        qkv = self._packed(matrix)
        gates = [prefix + "mlp.gate_proj", prefix + "mlp.up_proj"]
        pairs = paired_order(self._model.intermediate_size, self.machine)
        return CompiledLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=qkv,
            qkv_bias=None if bias is None else _padded(bias, qkv.padded_outputs),
            query_norm=_float(tensors.head_norm(prefix + "self_attn.q_norm.weight")),
            key_norm=_float(tensors.head_norm(prefix + "self_attn.k_norm.weight")),
            output=self._packed(tensors.merged([prefix + "self_attn.o_proj"])[0]),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self._packed(tensors.merged(gates, pairs)[0]),
            down=self._packed(tensors.merged([prefix + "mlp.down_proj"])[0]),
            window=tensors.window(number) or 0,
        )

    def _packed(self, matrix: torch.Tensor) -> PackedMatrix:
        return PackedMatrix.pack(self._stored(matrix), self.machine)

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
