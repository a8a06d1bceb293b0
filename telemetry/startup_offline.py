"""What a run that may be dead left behind of its start and its memory."""

import tempfile
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.memory_ledger_view import memory_view
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.startup import startup_view

LAST_NS = 24 * 3600 * 10**9


def read_startup(run_dir: Path) -> dict[str, Any]:
    """The views of its start and its memory, as the inspector would give them. Raises RecordingError."""
    with tempfile.TemporaryDirectory(prefix="vllm-obs-") as directory:
        path = Path(directory) / "run.rec"
        save_recording(run_dir, path, LAST_NS)
        service = open_replay(path, "127.0.0.1", 0)
        try:
            observer = service.observer
            startup = startup_view(observer.state.processes, observer.now())
            return {"startup": startup, "memory": memory_view(observer, service.memory)}
        finally:
            service.views.close(0)
            observer.close()
