"""MemoryMetrics: each process's memory by part, as it was looked up last."""

from collections.abc import Iterable

from vllm_obs.telemetry.catalogue_own import MEMORY_PARTS
from vllm_obs.telemetry.memory_ledger import MemoryLedger
from vllm_obs.telemetry.memory_ledger_holding import UNACCOUNTED
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.process_metrics import split_role

NAME = "vllm_obs_memory_bytes"

Series = tuple[str, str, str]


class MemoryMetrics:
    """Sets the levels before a scrape; what is gone goes to zero."""

    def __init__(self, store: MetricStore, ledger: MemoryLedger) -> None:
        self._store = store
        self._ledger = ledger
        self._shown: set[Series] = set()

    def refresh(self, live: Iterable[tuple[str, int]]) -> None:
        """Show the processes that live, by role and pid."""
        levels: dict[Series, int] = {}
        for role, pid in live:
            # All parts from the start: series that come later are gaps to whoever counts or compares them.
            levels |= dict.fromkeys(((*split_role(role), part) for part in MEMORY_PARTS), 0)
            found = self._ledger.found((role, pid))
            if found is not None:
                sizes = {**found.parts, UNACCOUNTED: found.unaccounted_bytes}
                levels |= {(*split_role(role), part): num_bytes for part, num_bytes in sizes.items()}
        for series in self._shown - levels.keys():
            self._store.value(NAME, *series).set(0)
        for series, level in levels.items():
            self._store.value(NAME, *series).set(level)
        self._shown = set(levels)
