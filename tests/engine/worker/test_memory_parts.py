"""A worker's weights, cache and buffers are found by address, each byte once, and nothing of it fails a start."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from vllm_obs.engine.worker.memory_parts import memory_parts


@dataclass(frozen=True)
class Layer:
    """As a model of ours has them."""

    matrix: torch.Tensor
    table: np.ndarray
    window: int = 0


@dataclass
class Model:
    """With an embedding that is its head too, and a layer that is a view of another's memory."""

    embedding: torch.Tensor
    layers: list[Layer]
    head: torch.Tensor
    itself: list["Model"] = field(default_factory=list)


class Held:
    """What a runner has."""

    def __init__(self, **held: object) -> None:
        self.__dict__ |= held


for kind in (Layer, Model, Held):
    kind.__module__ = "vllm_obs.engine.model.of_this_test"


def address(buffer: torch.Tensor) -> tuple[int, int]:
    return buffer.data_ptr(), buffer.nbytes


def test_every_buffer_is_found_in_its_part_once() -> None:
    embedding, matrix, cache = torch.zeros(100, 8), torch.zeros(64, 64), torch.zeros(10, 10)
    table, tokens = np.zeros(50), np.zeros((4, 4), np.int32)
    model = Model(embedding, [Layer(matrix, table)], embedding)
    model.itself.append(model)
    batch = Held(token_ids=tokens, num_rows=0, names={"a": "b"})
    found = memory_parts(Held(model=model, runner=Held(kv_cache=Held(layers=[cache]), input_batch=batch)))
    assert {part: sorted(ranges) for part, ranges in found.ranges.items()} == {
        "weights": sorted([address(embedding), address(matrix)]),
        "kv_cache": [address(cache)],
        "activations": sorted([(table.ctypes.data, table.nbytes), (tokens.ctypes.data, tokens.nbytes)]),
    }
    assert found.device_bytes == {}


def test_a_packed_matrix_without_a_storage_is_found() -> None:
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(64, 64), 32)
    ((_, num_bytes),) = memory_parts(Held(model=Held(weight=packed))).ranges["weights"]
    assert num_bytes >= 64 * 64 * 4


def test_a_worker_without_a_model_has_no_parts() -> None:
    assert memory_parts(object()) == ({}, {})


def test_what_cannot_be_looked_at_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        @property
        def model(self) -> object:
            raise RuntimeError("no")

    assert memory_parts(Broken()) == ({}, {})
    assert "could not be found out" in caplog.text
