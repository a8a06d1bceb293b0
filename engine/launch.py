"""EngineLink: an engine process that one client has for itself, with the two sockets that reach it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import zmq

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS, Child
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_process import EngineProcess
from vllm_obs.engine.engine_sockets import EngineSockets, Route
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.errors import EngineDeadError, StartupError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineFacts
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.telemetry.recorder import Recorder


class EngineLink:
    """The sum of an EngineProcess and of EngineSockets. The configuration says which engine it is.

    Without a run directory of the caller's it has one of its own.
    """

    def __init__(self, config: VllmConfig, recorder: Recorder, module: str = ENGINE_MODULE) -> None:
        """Start the engine: call this from the main thread. ConfigError or StartupError."""
        self._run_directory = None if config.run_dir else RunDirectory.create()
        if self._run_directory:
            config = replace(config, run_dir=str(self._run_directory.path))
        self.config = config
        self.route = Route(0, config.engine_index, config.generation)
        self._recorder = recorder
        self._module = module
        self.sockets = EngineSockets(self.route, config.run_dir, recorder)
        try:
            self.process = self._start()
        except BaseException:
            self._close_sockets()
            raise

    def _start(self) -> EngineProcess:
        process = EngineProcess(self.config, self._recorder, module=self._module)
        try:
            self.sockets.listen(process.pid)
        except BaseException:
            process.close(0)
            raise
        return process

    def try_ready(self) -> EngineFacts | None:
        """The engine's facts once it can be sent to, None before. ConfigError or StartupError when it ended."""
        is_connected = self.sockets.look()
        facts = self.process.facts()
        if facts is None or not is_connected:
            return None
        self.sockets.take_names_away()
        self.process.note_descendants()
        return facts

    def successor(self) -> "EngineLink":
        """Start the engine that takes this one's place: the next generation, in the caller's run directory."""
        assert self._run_directory is None
        config = replace(self.config, generation=self.config.generation + 1)
        return EngineLink(config, self._recorder, self._module)

    @property
    def child(self) -> Child:
        """The engine's process."""
        return self.process.child

    @property
    def outputs(self) -> "zmq.Socket[bytes]":
        """Where its outputs arrive."""
        return self.sockets.outputs

    @property
    def num_dropped(self) -> Counter[str]:
        """Messages from the engine that were not taken, by reason."""
        return self.sockets.num_dropped

    @property
    def exit_cause(self) -> str | None:
        """Why the engine ended, on purpose or not; None while it runs."""
        return self.process.exit_cause

    @property
    def dead_cause(self) -> str | None:
        """Why the engine ended; None while it lives, and when it was stopped on purpose."""
        return self.process.dead_cause

    @property
    def has_left_nothing(self) -> bool:
        """Whether the engine and every process it had when it was ready have ended."""
        return self.process.has_left_nothing

    def late_error(self, timeout_seconds: float) -> StartupError:
        """What a client raises that has waited long enough."""
        return self.process.late_error(timeout_seconds)

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` once when the engine ends, from another thread (or now, if it has)."""
        self.process.on_exit(callback)

    def send(self, frames: Sequence[Buffer], flags: int = 0) -> None:
        """Send a message to the engine; zmq.Again when its queue is full, EngineDeadError when it is gone."""
        if self.process.exit_cause:
            raise EngineDeadError(self.process.exit_cause)
        try:
            self.sockets.send(frames, flags)
        except EngineDeadError as error:
            raise EngineDeadError(self.process.exit_cause or str(error)) from None

    def receive(self, frames: Sequence[Buffer]) -> EngineCoreOutputs | None:
        """The outputs in these frames; None, and counted, for what is broken or not of this engine's life."""
        return self.sockets.receive(frames)

    def drop(self, reason: DropReason) -> None:
        """Count a message that was not taken."""
        self.sockets.drop(reason)

    def record_exit(self) -> None:
        """The engine's process has ended, whether it was told to or not."""
        self.process.record_exit()

    def ask_to_stop(self) -> None:
        """Order the engine to end; from now on its end is no death."""
        self.process.ask_to_stop()

    def close(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the engine within that time (then SIGKILL) and take the sockets away. Idempotent."""
        self.process.close(timeout_seconds)
        self._close_sockets()

    def _close_sockets(self) -> None:
        self.sockets.close()
        if self._run_directory:
            self._run_directory.close()
