"""What memory says in words: where most of it is, and a warning where it may run out."""

from typing import Any

MIB = 1 << 20
GIB = 1 << 30
MOST_NAMED = 3
RECORDING = "This is a recording"

_NAMES = {
    "libraries": "the interpreter and its libraries",
    "weights": "weights",
    "kv_cache": "the KV cache",
    "activations": "buffers of the steps",
    "tokenizer": "the tokenizer",
    "heap": "the heap",
    "stacks": "stacks of threads",
    "rings": "flight recorders",
    "queues": "queues between processes",
    "model_files": "the model's files",
}

Row = dict[str, Any]


def size(num_bytes: int | float) -> str:
    """Bytes for people."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.1f} MiB"


def sentence(view: Row) -> str:
    """How much is in RAM, and what most of it is: parts are resident bytes, and so is the sum shown with them."""
    total = view["total"]
    if not total["resident_bytes"]:
        return "No process of this run has been looked at."
    whole, shared = size(total["resident_bytes"]), ""
    if total["pss_bytes"]:
        shared = f" ({size(total['pss_bytes'])} with what they share counted once)"
    largest = sorted(total["parts"].items(), key=lambda item: -item[1])[:MOST_NAMED]
    told = [f"{_NAMES[part]} ({size(num_bytes)})" for part, num_bytes in largest]
    num_processes = len(view["processes"])
    head = f"{whole} are in RAM in {num_processes} {'process' if num_processes == 1 else 'processes'}{shared}"
    if not told:
        return f"{head}."
    listed = told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
    return f"{head}; most of it is {listed}."


def hints(view: Row) -> list[str]:
    """What to know before memory runs out."""
    return [hint for hint in (_growth_hint(view), _gap_hint(view)) if hint]


def _growth_hint(view: Row) -> str:
    """On a CPU the cache's memory is taken as it is written: what is reserved may not be there later."""
    growth = sum(cache["reserved_bytes"] - cache["resident_bytes"] for cache in view["kv_cache"])
    room = view["limits"].get("headroom_bytes")
    is_on_device = any(row["device_bytes"] for row in view["processes"])
    if room is None or growth <= room or is_on_device:
        return ""
    return (
        f"The KV cache may still take {size(growth)} and only {size(room)} are free: "
        "lower --kv-cache-memory-bytes, or the kernel may kill the engine under load."
    )


def _gap_hint(view: Row) -> str:
    if all(row["is_measured"] for row in view["processes"]):
        return ""
    if not view["limits"]:
        what = "The run has ended" if all(row["state"] == "exited" for row in view["processes"]) else RECORDING
        return f"{what}: of each process this is what was recorded last."
    return "Some processes could not be looked at; of those this is what was recorded last."
