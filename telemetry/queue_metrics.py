"""QueueMetrics: how much waits on a request's way through the API servers, and how late their loops run."""

from typing import Any

from vllm_obs.telemetry.catalogue_own import PRESSURE_SOURCES
from vllm_obs.telemetry.live_sequences import MAX_SEQUENCES
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.process_metrics import split_role
from vllm_obs.telemetry.records import LoopSampled
from vllm_obs.telemetry.view import Source

MAX_SERVERS = 256


class QueueMetrics:
    """Follows what was submitted and not yet taken or ended, and each API server's last sample, a second old."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._inbox: dict[str, None] = {}
        self._open: dict[str, None] = {}
        self._samples: dict[int, LoopSampled] = {}

    def submitted(self, request_id: str, is_taken: bool) -> None:
        """A sequence is on its way to a core, or taken already: another process's records may come first."""
        _remember(self._open, request_id)
        if not is_taken:
            _remember(self._inbox, request_id)

    def arrived(self, request_id: str) -> None:
        """A core has taken it."""
        self._inbox.pop(request_id, None)

    def ended(self, request_id: str) -> None:
        """It is over, taken or not."""
        self._inbox.pop(request_id, None)
        self._open.pop(request_id, None)

    def sampled(self, source: Source, record: LoopSampled) -> None:
        """An API server told of its loop and its queues."""
        lag = self._store.histogram("vllm_obs_event_loop_lag_seconds", *split_role(source.role))
        lag.observe(record.max_lag_seconds)
        self._samples[source.pid] = record
        if len(self._samples) > MAX_SERVERS:
            del self._samples[next(iter(self._samples))]

    def server_pids(self) -> list[int]:
        """The API servers whose samples are counted."""
        return list(self._samples)

    def forget(self, pid: int) -> None:
        """An API server ended: nothing waits in it."""
        self._samples.pop(pid, None)

    def refresh(self, num_waiting: int, num_steps_in_flight: int) -> None:
        """Set the depths; those of the cores are passed in."""
        samples = self._samples.values()
        depths = {
            "inbox": len(self._inbox),
            "waiting": num_waiting,
            "steps_in_flight": num_steps_in_flight,
            "open_http": sum(sample.num_open_http for sample in samples),
            "open_sequences": len(self._open),
            "undelivered_deltas": sum(sample.num_queued_deltas for sample in samples),
        }
        for source in PRESSURE_SOURCES:
            pressures = (sample.pressure for sample in samples if sample.pressure_source == source)
            self._store.value("vllm_obs_pressure", source).set(max(pressures, default=0.0))
        for queue, depth in depths.items():
            self._store.value("vllm_obs_queue_depth", queue).set(depth)
        self._store.value("vllm_obs_connections").set(sum(each.num_connections for each in samples))
        self._store.value("vllm_obs_connections_limit").set(sum(each.max_num_connections for each in samples))

    def state(self) -> Any:
        """In plain values."""
        return [
            list(self._inbox),
            list(self._open),
            [[pid, list(sample)] for pid, sample in self._samples.items()],
        ]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        inbox, open_ids, samples = state
        self._inbox, self._open = dict.fromkeys(inbox), dict.fromkeys(open_ids)
        self._samples = {pid: LoopSampled(*sample) for pid, sample in samples}


def _remember(request_ids: dict[str, None], request_id: str) -> None:
    request_ids[request_id] = None
    if len(request_ids) > MAX_SEQUENCES:
        del request_ids[next(iter(request_ids))]
