"""Replay: an ObserverService over a recording instead of a run's rings."""

import logging
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recording_tail import RecordingTail

_logger = logging.getLogger(__name__)


def open_replay(path: Path, host: str, port: int, slo: str = "", incident: Path | None = None) -> ObserverService:
    """Everything in the recording, applied and held to the objectives; its time stands still at its last record.

    `incident` is the folder of the incident that it belongs to, if any, which is then shown too. A file that is
    not whole is shown as far as it goes, with a warning. Raises RecordingError.
    """
    tail = RecordingTail(path)
    header = tail.header
    observer = Observer(header.run, clock=None, wall_offset=header.wall_at - header.recorded_at)
    observer.tail = tail
    facts: dict[str, Any] = {"recording": str(path), "begins_at": header.begins_at, "num_lost": header.num_lost}
    config = ObserverConfig(
        run_dir=path.parent,
        inspect_host=host,
        inspect_port=port,
        version=header.version,
        slo=slo,
        facts=facts,
    )
    service = ObserverService(observer, config)
    service.context.shelf = IncidentShelf.around(incident) if incident is not None else None
    while not observer.drain_slice():
        pass
    observer.caveat = facts["defect"] = tail.defect
    if tail.defect:
        _logger.warning("%s: %s", path, tail.defect)
    return service
