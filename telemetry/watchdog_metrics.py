"""StallMetrics: which engines and servers stand still now, and how often each kind of process was at fault."""

from vllm_obs.telemetry.catalogue_own import STALL_ROLES
from vllm_obs.telemetry.metric_series import Value
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import Record, StallBegun, StallEnded
from vllm_obs.telemetry.view import BaseView, Source

CORE, WORKER, SERVER, ROOT = STALL_ROLES
_KINDS = {"EngineCore": CORE, "Worker": WORKER, "APIServer": SERVER, "Launcher": ROOT}


class StallMetrics(BaseView):
    """Counts as the Observer's own records come. The engine is empty where a server or launcher stands still."""

    record_kinds = (StallBegun, StallEnded)

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._standing: set[tuple[str, str, int]] = set()
        """Those that stand still, by engine, role and pid: of several API servers more than one may."""

    def record(self, source: Source, record: Record) -> None:
        """Count what an Observer has found."""
        kind = type(record)
        if kind is StallBegun:
            assert isinstance(record, StallBegun)
            self._standing.add(_key(record))
            self._stalled(record).set(1)
            self._store.value("vllm_obs_stalls_total", record.engine, kind_of(record.role)).add()
        elif kind is StallEnded:
            assert isinstance(record, StallEnded)
            self._standing.discard(_key(record))
            alike = (record.engine, kind_of(record.role))
            self._stalled(record).set(any((engine, kind_of(role)) == alike for engine, role, _ in self._standing))

    def _stalled(self, record: StallBegun | StallEnded) -> Value:
        return self._store.value("vllm_obs_stalled", record.engine, kind_of(record.role))


def begin_stalls(store: MetricStore, engine: str) -> None:
    """Show an engine's series, the API servers' and the launcher's, before anything stands still."""
    for label, role in ((engine, CORE), (engine, WORKER), ("", SERVER), ("", ROOT)):
        store.value("vllm_obs_stalled", label, role)
        store.value("vllm_obs_stalls_total", label, role)


def _key(record: StallBegun | StallEnded) -> tuple[str, str, int]:
    return record.engine, record.role, record.pid


def kind_of(role: str) -> str:
    """The kind of process, from a closed set."""
    return _KINDS.get(role.partition("_")[0], "other")
