"""MemoryMetrics: each process's memory by part, as it was looked up or recorded last."""

from collections.abc import Iterable

from vllm_obs.telemetry.catalogue_own import MEMORY_PARTS
from vllm_obs.telemetry.memory_ledger import MemoryLedger
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.process_metrics import split_role

NAME = "vllm_obs_memory_bytes"

Series = tuple[str, str, str]


class MemoryMetrics:
    """Sets the levels before a scrape; what is gone goes to zero."""

    def __init__(self, store: MetricStore, ledger: MemoryLedger) -> None:
        self._store = store
        self._ledger = ledger

    def refresh(self, live: Iterable[tuple[str, int]]) -> None:
        """Show the processes that live, by role and pid."""
        levels: dict[Series, int] = {}
        for role, pid in live:
            # All parts from the start: series that come later are gaps to whoever counts or compares them.
            levels |= dict.fromkeys(((*split_role(role), part) for part in MEMORY_PARTS), 0)
            sizes = self._ledger.sizes((role, pid))
            levels |= {(*split_role(role), part): num_bytes for part, num_bytes in sizes.items()}
        family = self._store.families[NAME]
        for series in family.series.keys() - levels.keys():  # some came from another Observer's checkpoint
            family.value(*series).set(0)
        for series, level in levels.items():
            family.value(*series).set(level)
