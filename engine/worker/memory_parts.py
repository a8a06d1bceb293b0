"""Where a worker's memory lies: weights, KV cache, and the buffers it keeps between steps, by address."""

import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from vllm_obs.telemetry.memory_samples import Range, Ranges

MAX_VISITED = 100_000
"""A model of a thousand layers has a tenth of this many objects."""
_OURS = "vllm_obs."

_logger = logging.getLogger(__name__)


class WorkerMemory(NamedTuple):
    """The parts in the host's memory, by address; `device_bytes` are on a GPU, by part."""

    ranges: dict[str, Ranges]
    device_bytes: dict[str, int]


def memory_parts(worker: object) -> WorkerMemory:
    """What a loaded worker holds. A part that cannot be found out is left out; nothing is raised."""
    try:
        return _parts_of(worker)
    except Exception:  # telemetry may fail, serving may not
        _logger.warning("where the worker's memory lies could not be found out", exc_info=True)
        return WorkerMemory({}, {})


def _parts_of(worker: object) -> WorkerMemory:
    model, runner = getattr(worker, "model", None), getattr(worker, "runner", None)
    kv_cache, batch = getattr(runner, "kv_cache", None), getattr(runner, "input_batch", None)
    seen: set[int] = set()
    cached = list(_buffers(kv_cache, seen))
    held = list(_buffers(model, seen))
    # A model's own tables of numbers are made for its steps; what it was loaded with are tensors.
    weights = [buffer for buffer in held if _is_tensor(buffer)]
    kept = [buffer for buffer in held if not _is_tensor(buffer)] + list(_buffers(batch, seen))
    parts = {"weights": weights, "kv_cache": cached, "activations": kept}
    return WorkerMemory({part: _places(found) for part, found in parts.items() if found}, _on_device())


def _buffers(root: object, seen: set[int]) -> Iterator[Any]:
    """Every tensor and array that can be reached through our own objects and plain containers, once each."""
    pending = [root]
    while pending and len(seen) < MAX_VISITED:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if _is_tensor(each) or hasattr(each, "__array_interface__"):
            yield each
        else:
            pending += _inside(each)


def _inside(each: object) -> Iterable[object]:
    if isinstance(each, list | tuple):
        return each
    if isinstance(each, dict):
        return each.values()
    if not type(each).__module__.startswith(_OURS):
        return ()
    if is_dataclass(each):
        return [getattr(each, field.name) for field in fields(each)]
    return getattr(each, "__dict__", {}).values()


def _is_tensor(each: object) -> bool:
    return hasattr(each, "untyped_storage")


def _places(buffers: Iterable[Any]) -> list[Range]:
    """Where the memory of these is, of those in the host's memory."""
    return [place for buffer in buffers if (place := _place(buffer)) is not None]


def _place(buffer: Any) -> Range | None:
    if not _is_tensor(buffer):
        return buffer.__array_interface__["data"][0], buffer.nbytes
    if buffer.is_mkldnn:
        operations = sys.modules["torch"].ops.mkldnn
        return operations.data_ptr(buffer), operations._nbytes(buffer)
    if buffer.device.type != "cpu":
        return None
    storage = buffer.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _on_device() -> dict[str, int]:
    """What torch holds of a GPU: all of it, and what of that is in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"gpu_reserved": torch.cuda.memory_reserved(), "gpu_allocated": torch.cuda.memory_allocated()}
