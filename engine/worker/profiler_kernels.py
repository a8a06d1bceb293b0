"""KernelTable: what ran on a device over the captured steps, kernel by kernel, by the device's own clock."""

from typing import Any

from vllm_obs.engine.worker.profiler_step import Range

NS = 1e9
MAX_ROWS = 2048
MAX_SHOWN = 200
MAX_NAME_CHARS = 300
"""The name of a template's instance can be longer than anybody reads."""
OTHER = "(other)"
TRITON, CUDA, COPY = "triton", "cuda", "copy"
"""Kinds of work: a kernel of ours, one of a library, a copy or fill of memory."""

OUR_KERNELS = frozenset(
    f"{name}_kernel"
    for name in (
        "paged_attention", "split_reduction", "kv_write", "rms_norm", "rotary", "qkv", "silu_mul", "token_bitmask",
        "penalties", "logit_bias", "best_tokens", "logprobs", "filtered_draw",
    )
)  # fmt: skip
"""By their names in `engine/kernels/triton`. A test holds them to it."""
_COPIES = ("memcpy", "memset")


def kind_of(name: str) -> str:
    """What kind of work a name is of, by torch's profiler."""
    if name in OUR_KERNELS:
        return TRITON
    return COPY if name.lower().startswith(_COPIES) else CUDA


class _Sum:
    """The sums of one kernel."""

    __slots__ = ("flops", "num_bytes", "num_calls", "total_ns")

    def __init__(self) -> None:
        self.num_calls = self.total_ns = self.flops = self.num_bytes = 0

    def add(self, other: "_Sum") -> None:
        """Take another's in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class KernelTable:
    """Adds up work on streams; that of one step in order of its begin."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._busy_until: dict[str, int] = {}
        self._busy_ns = 0

    def add(self, track: str, one: Range) -> None:
        """Count a range on a track such as `device 0 stream 7`."""
        name = one.name if len(one.name) <= MAX_NAME_CHARS else one.name[: MAX_NAME_CHARS - 1] + "…"
        found = self._sums.get(name)
        if found is None:
            found = self._sums.setdefault(name if len(self._sums) < MAX_ROWS else OTHER, _Sum())
        found.num_calls += 1
        found.total_ns += one.ended_at - one.begun_at
        found.flops += one.flops
        found.num_bytes += one.num_bytes
        self._keep_busy(track.partition(" stream")[0], one)

    def _keep_busy(self, device: str, one: Range) -> None:
        """Streams of a device overlap; what both do is counted once."""
        until = self._busy_until.get(device, 0)
        self._busy_ns += max(0, one.ended_at - max(one.begun_at, until))
        self._busy_until[device] = max(until, one.ended_at)

    def content(self) -> dict[str, Any]:
        """Plain values; kernels with most time first, their shares of all kernels' time. Lengths in seconds."""
        total_ns = sum(each.total_ns for each in self._sums.values())
        return {
            "device_seconds": total_ns / NS,
            "device_busy_seconds": self._busy_ns / NS,
            "kernels": [_shown(name, each, total_ns) for name, each in self._ordered()],
        }

    def _ordered(self) -> list[tuple[str, _Sum]]:
        """As many as are shown; the rest as one row, so that the sum is that of all."""
        ordered = sorted(self._sums.items(), key=lambda item: -item[1].total_ns)
        shown = dict(ordered[:MAX_SHOWN])
        for _, each in ordered[MAX_SHOWN:]:
            shown.setdefault(OTHER, _Sum()).add(each)
        return sorted(shown.items(), key=lambda item: -item[1].total_ns)


def _shown(name: str, found: _Sum, total_ns: int) -> dict[str, Any]:
    seconds = found.total_ns / NS
    row: dict[str, Any] = {
        "kernel": name,
        "kind": kind_of(name),
        "num_calls": found.num_calls,
        "device_seconds": seconds,
        "mean_seconds": seconds / found.num_calls,
        "share_of_device": found.total_ns / total_ns if total_ns else 0.0,
    }
    if found.flops and seconds:
        row |= {"flops": found.flops, "flops_per_second": found.flops / seconds}
    if found.num_bytes and seconds:
        row |= {"num_bytes": found.num_bytes, "bytes_per_second": found.num_bytes / seconds}
    return row
