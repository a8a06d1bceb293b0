"""The inspector's view of memory: who holds what, what nothing explains, the KV cache, and what room is left."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.memory_ledger import MemoryLedger
from vllm_obs.telemetry.memory_ledger_holding import PARTS, Holding
from vllm_obs.telemetry.memory_ledger_words import hints, sentence
from vllm_obs.telemetry.memory_limits import MemoryReader
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.process_table import ProcessFacts

FIRST_ENGINE = "0"
NS = 1e9
_ENGINE_ROLE = "EngineCore_DP"

Row = dict[str, Any]


def memory_view(observer: Observer, ledger: MemoryLedger) -> Row:
    """Every live process's memory as it was looked up last, and how long ago.

    Bytes; `share` is of what is resident. `total` adds up the resident bytes of all processes; `pss_bytes` counts
    what they share once.
    """
    now = observer.now()
    processes = [each for each in observer.state.processes.all() if each.state != "exited" or not observer.is_live]
    rows = [_process(each, ledger, observer.is_live, now) for each in processes]
    known = sorted((row for row in rows if row["resident_bytes"]), key=lambda row: (row["role"], row["pid"]))
    caches = [_cache(engine, known) for engine in observer.state.engines.values()]
    limits = _limits(processes) if observer.is_live else {}
    view = {"processes": known, "total": _total(known), "kv_cache": caches, "limits": limits}
    return {"says": sentence(view), "hints": hints(view), **view}


def _process(facts: ProcessFacts, ledger: MemoryLedger, is_live: bool, now: int) -> Row:
    who = (facts.role, facts.pid)
    found = ledger.found(who) if is_live else None
    holding = ledger.holding(who) or Holding(*who)
    looked_at = ledger.looked_at(who) if found else holding.last.sampled_at if holding.last else 0
    parts, resident = (found.parts, found.resident_bytes) if found else _recorded(holding)
    unaccounted = max(0, resident - sum(parts.values()))
    return {
        "role": facts.role,
        "pid": facts.pid,
        "state": facts.state,
        "is_measured": found is not None,
        "is_rough": found is not None and found.is_rough,
        "looked_at": looked_at or None,
        "age_seconds": max(0, now - looked_at) / NS if looked_at else None,
        "resident_bytes": resident,
        "pss_bytes": found.pss_bytes if found else None,
        "accounted": 1 - unaccounted / resident if resident else None,
        "unaccounted_bytes": unaccounted,
        "parts": [_part(part, parts, holding, resident) for part in PARTS if part in parts],
        "device_bytes": dict(holding.device_bytes),
    }


def _recorded(holding: Holding) -> tuple[dict[str, int], int]:
    last = holding.last
    if last is None:
        return {}, 0
    return dict(zip(last.parts, last.part_bytes, strict=False)), last.resident_bytes


def _part(part: str, parts: dict[str, int], holding: Holding, resident: int) -> Row:
    """`allocated_bytes` is known of parts with addresses: what is not resident of it has never been written."""
    return {
        "part": part,
        "bytes": parts[part],
        "share": parts[part] / resident if resident else 0.0,
        "allocated_bytes": holding.allocated.get(part),
    }


def _total(rows: Iterable[Row]) -> Row:
    rows = list(rows)
    sizes = Counter[str]()
    for row in rows:
        for part in row["parts"]:
            sizes[part["part"]] += part["bytes"]
    resident, unaccounted = (sum(row[name] for row in rows) for name in ("resident_bytes", "unaccounted_bytes"))
    is_whole = all(row["pss_bytes"] is not None for row in rows)
    return {
        "resident_bytes": resident,
        "pss_bytes": sum(row["pss_bytes"] for row in rows) if is_whole and rows else None,
        "accounted": 1 - unaccounted / resident if resident else None,
        "unaccounted_bytes": unaccounted,
        "parts": {part: sizes[part] for part in PARTS if sizes[part]},
    }


def _cache(engine: EngineState, rows: Iterable[Row]) -> Row:
    """An engine's KV cache: what is reserved, what of it is in RAM, and what live and cached blocks take."""
    parts = [part for row in rows if _engine_of(row["role"]) == engine.label for part in row["parts"]]
    cache = [part for part in parts if part["part"] == "kv_cache"]
    described, levels = engine.described, engine.block_levels
    reserved = sum(part["allocated_bytes"] or 0 for part in cache)
    if not reserved and described is not None:
        reserved = described.kv_cache_bytes * described.world_size
    num_blocks = described.num_blocks if described is not None else 0
    block_bytes = reserved // num_blocks if num_blocks else 0
    return {
        "engine": engine.label,
        "num_blocks": num_blocks,
        "reserved_bytes": reserved,
        "resident_bytes": sum(part["bytes"] for part in cache),
        "active_bytes": levels.num_active * block_bytes,
        "cached_bytes": levels.num_cached * block_bytes,
    }


def _engine_of(role: str) -> str:
    return role.removeprefix(_ENGINE_ROLE) if role.startswith(_ENGINE_ROLE) else FIRST_ENGINE


def _limits(processes: Iterable[ProcessFacts]) -> Row:
    """The machine's memory and the control group's limit (0: none), and what can still be taken of both."""
    import psutil  # not at every start of an Observer

    host = psutil.virtual_memory()
    found = [limits for each in processes if (limits := MemoryReader().read(each.pid)) is not None]
    limited = [limits for limits in found if limits.limit_bytes]
    limit = min(limited, key=lambda each: each.limit_bytes, default=None)
    room = host.available
    if limit is not None:
        room = min(room, max(0, limit.limit_bytes - limit.used_bytes))
    return {
        "host_bytes": host.total,
        "host_available_bytes": host.available,
        "group_limit_bytes": limit.limit_bytes if limit is not None else 0,
        "group_used_bytes": limit.used_bytes if limit is not None else 0,
        "headroom_bytes": room,
    }
