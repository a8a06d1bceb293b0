"""An API server as its launcher sees it, which serves nothing: `python -m fake_api_server`.

To whoever connects it says its index and its life. What it was ordered is in its run directory, a line for each.
"""

import os
import socket
import threading
from pathlib import Path
from typing import Any

from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec import write_fields
from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.api_server_settings import ApiServerSettings
from vllm_obs.server.launcher_messages import (
    BLAMED,
    CUT_OFF,
    DRAIN,
    DRAINED,
    ENGINE,
    OPEN,
    PROFILE,
    RELOAD,
    SERVING,
    STATUS,
    SUSPECTS,
    TELEMETRY,
    EngineNews,
    ServerStatus,
)

REPORT_SECONDS = 0.1


class FakeApiServer:
    """Is ready once every engine that it hears of has served, and lets requests in when told to; drains at once.

    `VLLM_OBS_FAKE_SERVER` makes it `bad`, `slow` (it does not drain) or `late`: all but the first are never ready.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._settings = ApiServerSettings.of(owner.configuration)
        self._route = self._settings.route
        self._log = Path(self._settings.config.run_dir) / f"heard-{self._route.client_index}.log"
        self._waits: set[int] = set()
        self._is_ready = False
        self._phase = "loading"
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._code = 0

    def run(self) -> None:
        """Until the order to stop."""
        if os.environ.get("VLLM_OBS_FAKE_SERVER") == "bad":
            raise ConfigError("this API server cannot be configured")
        for body in (self._report, self._take_connections):
            threading.Thread(target=body, daemon=True).start()
        self._owner.on_stop(self._stopping.set)
        for kind in (OPEN, DRAIN, CUT_OFF, TELEMETRY, PROFILE, RELOAD, SUSPECTS, BLAMED, ENGINE):
            self._owner.on_order(kind, lambda payload, kind=kind: self._hear(kind, payload))
        self._stopping.wait(60)
        os._exit(self._code)

    def _report(self) -> None:
        while not self._stopping.is_set():
            self._owner.say(STATUS, write_fields(ServerStatus(self._phase, 0, 0, 1, [(0, 2), (1, 1)])))
            self._news.wait(REPORT_SECONDS)
            self._news.clear()

    def _hear(self, kind: str, payload: Any) -> None:
        told = EngineNews.read(payload).state if kind == ENGINE else payload
        with self._log.open("a") as log:
            log.write(f"{self._route.client_life} {kind} {told}\n")
        if kind == PROFILE:  # as good an occasion as any
            self._owner.say(SUSPECTS, [[b"d" * 32, True, True]])
        if kind in (PROFILE, SUSPECTS):
            self._owner.say(SUSPECTS, [])
        if kind == OPEN:
            self._phase = "ready"
            self._news.set()
        elif kind == ENGINE:
            self._hear_of(EngineNews.read(payload))
        elif kind == CUT_OFF or (kind == DRAIN and os.environ.get("VLLM_OBS_FAKE_SERVER") != "slow"):
            self._code = int(kind == CUT_OFF)
            self._owner.say(DRAINED, self._code)

    def _hear_of(self, news: EngineNews) -> None:
        self._waits.add(news.engine_index)
        if news.state == SERVING:
            self._waits.discard(news.engine_index)
        if not self._waits and not self._is_ready:
            self._is_ready = True
            if not self._route.client_index or os.environ.get("VLLM_OBS_FAKE_SERVER") != "late":
                self._owner.say(READY)

    def _take_connections(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._settings.handover, 1, 1)
            if not message:
                return
            with socket.socket(fileno=descriptors[0]) as connection:
                connection.sendall(f"{self._route.client_index}.{self._route.client_life}".encode())


if __name__ == "__main__":
    run_child(lambda owner: FakeApiServer(owner).run())
