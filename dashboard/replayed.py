"""Replayed: an Observer over a recording, in the dashboard's own event loop, as the source of its pages."""

import asyncio
from pathlib import Path

from vllm_obs.dashboard.app import Ending
from vllm_obs.dashboard.source import Source
from vllm_obs.telemetry.inspect_client import InspectorError
from vllm_obs.telemetry.replay import open_replay


class Replayed:
    """The recording, read whole. `incident` is the folder it belongs to, if any. Raises RecordingError."""

    def __init__(self, recording: Path, slo: str = "", incident: Path | None = None) -> None:
        self._service = open_replay(recording, "127.0.0.1", 0, slo, incident)
        self._address = ""
        self.source = Source(self._locate, is_live=False)

    async def start(self) -> Ending:
        """Serve its API on a free port."""
        server = await self._service.start()
        running = asyncio.create_task(self._service.run(), name="replay")
        self._address = server.address

        async def end() -> None:
            self._service.end()
            await running
            await server.stop()
            await self._service.close()

        return end

    def _locate(self) -> str:
        if not self._address:
            raise InspectorError("the recording is being read")
        return self._address
