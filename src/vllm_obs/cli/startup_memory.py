"""The memory of a run as text: a block of lines for each process, the KV cache, and the room that is left."""

from collections.abc import Iterator
from typing import Any

from vllm_obs.cli.explain import BAR_WIDTH, bar

MIB = 1 << 20
GIB = 1 << 30

Row = dict[str, Any]


def memory_lines(view: Row) -> Iterator[str]:
    """The sentence, the processes, their sum, the KV caches, the limits, and hints."""
    yield view["says"]
    for process in view["processes"]:
        yield ""
        yield from _process_lines(process)
    total = view["total"]
    if total["accounted"] is not None:
        shared = f", {size(total['pss_bytes'])} with what they share counted once" if total["pss_bytes"] else ""
        yield ""
        yield f"{size(total['resident_bytes'])} in all{shared}; {100 * total['accounted']:.1f} % accounted for."
    yield from (_cache_line(cache) for cache in view["kv_cache"])
    yield from _limit_lines(view["limits"])
    yield from view["hints"]


def size(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.1f} MiB"


def _process_lines(process: Row) -> Iterator[str]:
    whole = process["resident_bytes"]
    how = "" if process["is_measured"] else ", as recorded last"
    accounted = f"{100 * process['accounted']:.1f} % accounted"
    yield f"{process['role']} (pid {process['pid']}): {size(whole)} in RAM, {accounted}{how}"
    for part in process["parts"]:
        yield _line(part["part"], part["bytes"], whole, _of_how_much(part))
    yield _line("unaccounted", process["unaccounted_bytes"], whole, "")
    for part, num_bytes in process["device_bytes"].items():
        yield f"  {part:<12} {size(num_bytes):>11}"


def _line(name: str, num_bytes: int, whole: int, note: str) -> str:
    share = num_bytes / whole if whole else 0.0
    row = f"  {name:<12} {size(num_bytes):>11} {100 * share:>5.1f} %  {bar(share, BAR_WIDTH):<{BAR_WIDTH}}{note}"
    return row.rstrip()


def _of_how_much(part: Row) -> str:
    allocated = part["allocated_bytes"]
    return f"  of {size(allocated)} reserved" if allocated and allocated > 1.01 * part["bytes"] else ""


def _cache_line(cache: Row) -> str:
    return (
        f"KV cache of engine {cache['engine']}: {size(cache['reserved_bytes'])} reserved, "
        f"{size(cache['resident_bytes'])} in RAM; sequences hold {size(cache['active_bytes'])}, "
        f"{size(cache['cached_bytes'])} are cached."
    )


def _limit_lines(limits: Row) -> Iterator[str]:
    if not limits:
        return
    group = limits["group_limit_bytes"]
    limit = f"the control group may use {size(group)} and uses {size(limits['group_used_bytes'])}" if group else ""
    host = f"the machine has {size(limits['host_bytes'])}"
    told = "; ".join(words for words in (limit, host) if words)
    yield f"{told[0].upper()}{told[1:]}; {size(limits['headroom_bytes'])} can still be taken."
