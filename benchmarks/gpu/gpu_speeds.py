"""How fast each kernel is, beside the least time its bytes and operations take on this card."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from gpu_card import Card
from gpu_ceilings import UNKNOWN, Ceilings

from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, QWEN3_0_6B, TINY
from vllm_obs.engine.kernels.triton.sampling_workloads import sampling_workloads
from vllm_obs.engine.kernels.triton.workloads import Bench, Workload, WorkSize, layer_workloads

SIZE = WorkSize(num_rows=32, seq_len=2048, num_prompt_tokens=2048)
DRY_SIZE = WorkSize(num_rows=2, seq_len=24, num_prompt_tokens=3, num_splits=2)


class Speed(NamedTuple):
    """A kernel at the sizes of a model."""

    model: str
    workload: Workload

    def row(self, card: Card, ceilings: Ceilings) -> dict[str, Any]:
        """Its rates, and the share of the ceiling that it comes to."""
        launch, rows = self.workload.launch(card.configs), self.workload.rows
        num_bytes, num_flops = launch.work.bytes_of(rows), launch.work.flops_of(rows)
        seconds = card.median_seconds(launch.run)
        floor = ceilings.floor_seconds(num_bytes, num_flops)
        is_bound_by_bytes = floor == num_bytes / ceilings.bytes_per_second
        return {
            "model": self.model,
            "kernel": self.workload.name,
            "seconds": seconds,
            "num_bytes": num_bytes,
            "num_flops": num_flops,
            "bytes_per_second": num_bytes / seconds,
            "flops_per_second": num_flops / seconds,
            "bound_by": "bytes" if is_bound_by_bytes else "flops",
            "share_of_ceiling": floor / seconds if ceilings is not UNKNOWN else None,
        }


def speeds_of(card: Card) -> Iterator[Speed]:
    """Each kernel at each model's sizes, always in the same order; one's tensors can go before the next one's."""
    shapes, size = ((TINY,), DRY_SIZE) if card.is_dry else ((LLAMA_3_8B, QWEN3_0_6B), SIZE)
    for shape in shapes:
        bench = Bench(shape, size, card.device)
        for workload in chain(layer_workloads(bench), sampling_workloads(bench)):
            yield Speed(shape.name, workload)
