"""EngineProcess: a running EngineCore as its owner sees it, whoever its clients are."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS, configured
from vllm_obs.engine.child_pipe import CLIENT, READY
from vllm_obs.engine.codec import read_fields
from vllm_obs.engine.codec_arrays import ArrayReader
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.descendants import Descendants
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.engine_titles import ENGINE_MODULE, engine_title
from vllm_obs.engine.errors import StartupError, VllmObsError
from vllm_obs.engine.head_start import started
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import ProcessExited

READY_TIMEOUT_SECONDS = 600.0
READY_POLL_SECONDS = 0.01


class EngineProcess:
    """The child with its facts, its end and what it leaves. The configuration says which engine it is.

    It connects to the endpoints of its clients, whenever they begin to listen. `client_lives` counts the restarts
    of each client's process.
    """

    def __init__(
        self,
        config: VllmConfig,
        recorder: Recorder,
        client_lives: Sequence[int] = (0,),
        module: str = ENGINE_MODULE,
    ) -> None:
        """Start it: call this from the main thread. StartupError."""
        self.config = config
        self._client_lives = list(client_lives)
        self._recorder = recorder
        self._module = module
        self._is_stopped = False
        self._below = Descendants([])
        clients = [self._endpoints(client) for client in range(len(self._client_lives))]
        configuration = {"config": to_wire(config), "clients": clients}
        title = engine_title(config.engine_index)
        self.child = configured(started(module, title), title, configuration)

    def _endpoints(self, client_index: int) -> tuple[str, str]:
        config, life = self.config, self._client_lives[client_index]
        return Route(client_index, config.engine_index, config.generation, life).endpoints(config.run_dir)

    def replace_client(self, client_index: int) -> None:
        """That client's process has ended: end what it ran here, and expect another in its place."""
        self._client_lives[client_index] += 1
        self.child.order(CLIENT, [client_index, *self._endpoints(client_index)])

    def successor(self) -> "EngineProcess":
        """Start the engine that takes this one's place: the next generation, in the same run directory."""
        config = replace(self.config, generation=self.config.generation + 1)
        return EngineProcess(config, self._recorder, self._client_lives, self._module)

    @property
    def title(self) -> str:
        """What it is called."""
        return self.child.title

    @property
    def pid(self) -> int:
        """Its process."""
        return self.child.pid

    def facts(self) -> EngineFacts | None:
        """What it said with READY, None before. ConfigError or StartupError, and recorded, when it has ended."""
        try:
            payload = self.child.message(READY)
            self.child.require_life()  # one that ended after READY says nothing any more
        except VllmObsError:
            self.record_exit()
            raise
        if payload is None:
            return None
        facts: EngineFacts = read_fields(EngineFacts, payload, ArrayReader([]))
        return facts

    def note_descendants(self) -> None:
        """Take hold of the processes that it has now: once it is ready it starts no more."""
        self._below.close()
        self._below = Descendants.of(self.child.pid)

    def late_error(self, timeout_seconds: float) -> StartupError:
        """What is raised by who has waited long enough."""
        return StartupError(f"{self.title} was not ready within {timeout_seconds:g} s")

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` once when it ends, from another thread (or now, if it has)."""
        self.child.on_exit(callback)

    @property
    def exit_cause(self) -> str | None:
        """Why it ended, on purpose or not; None while it runs."""
        return self.child.exit_cause

    @property
    def dead_cause(self) -> str | None:
        """Why it ended; None while it lives, and when it was stopped on purpose."""
        return None if self._is_stopped else self.child.exit_cause

    @property
    def has_left_nothing(self) -> bool:
        """Whether it and every process it had when it was ready have ended."""
        return self.child.exit_cause is not None and self._below.are_gone

    def record_exit(self) -> None:
        """Its process has ended, whether it was told to or not."""
        child, now = self.child, time.monotonic_ns()
        self._recorder.record(ProcessExited(child.title, child.pid, child.exit_code or 0, now, child.was_told))

    def ask_to_stop(self) -> None:
        """Order it to end; from now on its end is no death."""
        self._is_stopped = self._is_stopped or self.child.exit_cause is None
        self.child.ask_to_stop()

    def close(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End it within that time, then SIGKILL, and what is left of its own processes. Idempotent."""
        self._is_stopped = self._is_stopped or self.child.exit_cause is None
        self.child.stop(timeout_seconds)
        self._below.kill()
        self._below.close()


def client_endpoints(configuration: dict[str, Any]) -> list[tuple[str, str]]:
    """The engine's side of what it is started with: each client's (request, output) endpoints."""
    return [(requests, outputs) for requests, outputs in configuration["clients"]]
