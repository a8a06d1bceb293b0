"""How fast each kernel is, beside the least time its bytes and operations take on this card."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from gpu_budget import Part
from gpu_card import Card, Ceilings, median_seconds

from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, QWEN3_0_6B, TINY
from vllm_obs.engine.kernels.triton.sampling_workloads import sampling_workloads
from vllm_obs.engine.kernels.triton.workloads import Bench, Workload, WorkSize, layer_workloads

SIZE = WorkSize(num_rows=32, seq_len=2048, num_prompt_tokens=2048)
DRY_SIZE = WorkSize(num_rows=2, seq_len=24, num_prompt_tokens=3, num_splits=2)


def measure_speeds(card: Card, ceilings: Ceilings, part: Part) -> list[dict[str, Any]]:
    """A row for each kernel and model's sizes."""
    shapes, size = ((TINY,), DRY_SIZE) if card.is_dry else ((LLAMA_3_8B, QWEN3_0_6B), SIZE)
    rows = []
    for shape in shapes:
        for workload in _workloads(Bench(shape, size, card.device)):
            if part.has_time():
                rows.append({"model": shape.name, **_measured(card, ceilings, part, workload)})
            else:
                part.cut(f"{shape.name}, {workload.name}")
    return rows


def _workloads(bench: Bench) -> Iterator[Workload]:
    return chain(layer_workloads(bench), sampling_workloads(bench))


def _measured(card: Card, ceilings: Ceilings, part: Part, workload: Workload) -> dict[str, Any]:
    launch = workload.launch(card.configs)
    seconds = median_seconds(card, part, launch.run)
    floor = ceilings.floor_seconds(workload.num_bytes, workload.num_flops)
    is_bound_by_bytes = floor == workload.num_bytes / ceilings.bytes_per_second
    return {
        "kernel": workload.name,
        "seconds": seconds,
        "num_bytes": workload.num_bytes,
        "num_flops": workload.num_flops,
        "bytes_per_second": workload.num_bytes / seconds,
        "flops_per_second": workload.num_flops / seconds,
        "bound_by": "bytes" if is_bound_by_bytes else "flops",
        "share_of_ceiling": floor / seconds,
    }
