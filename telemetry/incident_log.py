"""IncidentLog: the incidents of a run as the Observer recorded them, and their counter."""

from collections import deque
from typing import Any

from vllm_obs.telemetry.death_cause import CAUSES
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import IncidentFiled, ProcessStarted, Record
from vllm_obs.telemetry.view import BaseView, Source

MAX_INCIDENTS = 64
METRIC = "vllm_obs_incidents_total"


class IncidentLog(BaseView):
    """The last MAX_INCIDENTS, oldest first: of a live run since this Observer began, of a recording all.

    One that is recorded again, since it is over or written by now, is told as it was recorded last.
    """

    record_kinds = (IncidentFiled, ProcessStarted)

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._filed: deque[IncidentFiled] = deque(maxlen=MAX_INCIDENTS)
        self._counted: deque[str] = deque(maxlen=MAX_INCIDENTS)
        """The names of the last that are in the counter, those of earlier Observers too."""

    @property
    def last(self) -> IncidentFiled | None:
        """The newest."""
        return self._filed[-1] if self._filed else None

    def all(self) -> list[IncidentFiled]:
        """Oldest first."""
        return list(self._filed)

    def state(self) -> Any:
        """What is counted already, for a checkpoint: another Observer may have to tell that it is over."""
        return list(self._counted)

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError if it is none."""
        self._counted.extend(state)

    def record(self, source: Source, record: Record) -> None:
        """Count what an Observer has filed."""
        kind = type(record)
        if kind is IncidentFiled:
            assert isinstance(record, IncidentFiled)
            self._take(record)
        elif kind is ProcessStarted:
            # Each cause is shown from the start on: a counter that appears with its first count has no rate.
            for cause in CAUSES:
                self._store.value(METRIC, cause)

    def _take(self, filed: IncidentFiled) -> None:
        for place, known in enumerate(self._filed):
            if known.incident == filed.incident:
                self._filed[place] = filed
                return
        self._filed.append(filed)
        if filed.incident not in self._counted:
            self._counted.append(filed.incident)
            self._store.value(METRIC, filed.cause if filed.cause in CAUSES else "other").add()
