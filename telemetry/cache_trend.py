"""CacheTrend: what went into the KV cache, out of it and was found in it, in equal spans of the last minutes."""

from collections import OrderedDict
from dataclasses import astuple, dataclass, fields
from typing import Any

from vllm_obs.telemetry.quantiles import MAX_ENGINES
from vllm_obs.telemetry.rate_windows import NS
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    Record,
    RequestReleased,
    RequestTaken,
    StepPlanned,
)
from vllm_obs.telemetry.trend import MAX_SECONDS, NUM_SPANS
from vllm_obs.telemetry.view import BaseView, Source

MAX_WAITING = 65_536


@dataclass(slots=True)
class CacheSecond:
    """One second of one engine. Prompt tokens that are looked up count when their sequence is first admitted.

    The levels are those of its last plan.
    """

    num_allocated: int = 0
    num_hit_blocks: int = 0
    num_cached_in: int = 0
    num_evicted: int = 0
    num_queried_tokens: int = 0
    num_found_tokens: int = 0
    num_active: int = 0
    num_cached: int = 0
    num_free: int = 0


_LEVELS = ("num_active", "num_cached", "num_free")
_NAMES = [field.name for field in fields(CacheSecond)]
_SUMS = [name for name in _NAMES if name not in _LEVELS]


class CacheTrend(BaseView):
    """A view. A second in which no step was planned is a gap."""

    record_kinds = (StepPlanned, BlocksChanged, BlocksCached, RequestTaken, RequestReleased)

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, CacheSecond]] = {}
        self._now: dict[str, CacheSecond] = {}
        self._waiting: OrderedDict[str, int] = OrderedDict()
        """Prompt tokens of those that were not admitted yet."""

    def record(self, source: Source, record: Record) -> None:
        """Count what the core says; what comes before an engine's first plan belongs to no second."""
        if isinstance(record, StepPlanned):
            self._planned(source.engine or "0", record)
        elif isinstance(record, BlocksChanged | BlocksCached):
            second = self._now.get(source.engine or "0")
            if second is not None:
                _count_blocks(second, record)
        elif isinstance(record, RequestTaken) and not record.skips_cache:
            self._waiting[record.request_id] = record.num_prompt_tokens
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)
        elif isinstance(record, RequestReleased):
            self._waiting.pop(record.request_id, None)

    def columns(self, engine: str, now: int, span_seconds: int) -> dict[str, Any]:
        """NUM_SPANS spans at most, oldest first, all of them over by `now` (monotonic ns), in parallel columns.

        `last_minute` are the sums of the last 60 seconds; its `hit_rate` is None where nobody was admitted.
        """
        seconds = self._seconds.get(engine, {})
        end = now // NS // span_seconds
        spans = range(end - min(NUM_SPANS, MAX_SECONDS // span_seconds), end)
        rows = [_summed(seconds, span * span_seconds, (span + 1) * span_seconds) for span in spans]
        columns = {name: [row and row[name] for row in rows] for name in [*_NAMES, "hit_rate"]}
        last = _summed(seconds, now // NS - 60, now // NS) or dict.fromkeys([*_SUMS, "hit_rate"])
        return {
            "engine": engine,
            "span_seconds": span_seconds,
            "begun_at": [span * span_seconds * NS for span in spans],
            **columns,
            "last_minute": {name: last[name] for name in [*_SUMS, "hit_rate"]},
        }

    def _planned(self, engine: str, planned: StepPlanned) -> None:
        seconds = self._seconds.get(engine)
        if seconds is None:
            if len(self._seconds) >= MAX_ENGINES:
                return
            seconds = self._seconds[engine] = {}
        second = seconds.setdefault(planned.schedule_begun_at // NS, CacheSecond())
        self._now[engine] = second
        if len(seconds) > MAX_SECONDS:
            del seconds[min(seconds)]
        second.num_active = planned.num_active_blocks
        second.num_cached = planned.num_cached_blocks
        second.num_free = planned.num_free_blocks
        for request_id, num_found in zip(planned.admitted_ids, planned.admitted_cached_tokens, strict=False):
            num_queried = self._waiting.pop(request_id, None)
            if num_queried is not None:
                second.num_queried_tokens += num_queried
                second.num_found_tokens += num_found


def _count_blocks(second: CacheSecond, record: BlocksChanged | BlocksCached) -> None:
    if isinstance(record, BlocksChanged):
        num_hits = sum(record.num_hit_blocks)
        second.num_hit_blocks += num_hits
        second.num_allocated += sum(map(len, record.allocated)) - num_hits
    elif record.evicted:
        second.num_evicted += len(record.block_ids)
    else:
        second.num_cached_in += len(record.block_ids)


def _summed(seconds: dict[int, CacheSecond], begin: int, end: int) -> dict[str, Any] | None:
    """The sums of these seconds and the levels of the last of them; None where there is none."""
    found = [seconds[second] for second in range(begin, end) if second in seconds]
    if not found:
        return None
    sums: dict[str, Any] = dict(
        zip(_NAMES, (sum(column) for column in zip(*map(astuple, found), strict=True)), strict=True)
    )
    sums |= {name: getattr(found[-1], name) for name in _LEVELS}
    queried = sums["num_queried_tokens"]
    return sums | {"hit_rate": sums["num_found_tokens"] / queried if queried else None}
