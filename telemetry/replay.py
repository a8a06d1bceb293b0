"""Replay: an ObserverService over a recording instead of a run's rings."""

from pathlib import Path

from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recording_tail import RecordingTail


def open_replay(path: Path, host: str, port: int) -> ObserverService:
    """Everything in the recording, applied; its time stands still at its last record. Raises RecordingError."""
    tail = RecordingTail(path)
    header = tail.header
    observer = Observer(header.run, clock=None, wall_offset=header.wall_at - header.recorded_at)
    observer.tail = tail
    config = ObserverConfig(
        run_dir=path.parent,
        inspect_host=host,
        inspect_port=port,
        version=header.version,
        facts={"recording": str(path), "begins_at": header.begins_at, "num_lost": header.num_lost},
    )
    service = ObserverService(observer, config)
    while not observer.drain_slice():
        pass
    return service
