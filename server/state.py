"""What one API server is doing now, and the engine its routes talk to."""

import hashlib
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vllm_obs import __version__
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.chat_template import ChatTemplate
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.errors import ApiError, seconds_until, shown
from vllm_obs.server.pressure import Pressure
from vllm_obs.server.profiles import ServerProfiles
from vllm_obs.server.tool_calls.registry import MakeParser, tool_parser
from vllm_obs.server.trace_context import Tracing
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder


class Phase(Enum):
    """LOADING until the engine is ready; DRAINING after SIGTERM; DEAD once the engine is gone for good.

    STALLED while the engine has work and makes no progress; BROKEN while its model gives no numbers; RESTARTING
    while another takes a dead one's place.
    """

    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"
    BROKEN = "broken"
    RESTARTING = "restarting"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True)
class Engine:
    """A ready engine with what is needed to talk to it in text."""

    llm: AsyncLLM
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    facts: EngineFacts


class ApiServer:
    """The state all routes and middlewares share.

    `num_open` counts the requests that were let in and whose reply is not out yet, without probes;
    `num_open_http` counts all.
    `tracing` is None where nothing is traced.
    """

    def __init__(self, config: VllmConfig, server: ServerConfig, recorder: ProcessRecorder) -> None:
        self.config = config
        self.server = server
        self.recorder = recorder
        self.keys = ApiKeys(server.names_by_key)
        self.fingerprint = _fingerprint(config)
        self._wall_offset = time.time_ns() - time.monotonic_ns()
        self.created = self.wall_time(time.monotonic_ns())
        self.client_index = 0
        self.tracing = _tracing(config, server)
        self.profiles = ServerProfiles(config.run_dir, server.profiler_config, recorder)
        self.num_open = 0
        self.num_open_http = 0
        self.pressure = Pressure()
        self.make_tool_parser = _tool_parser(server)
        self.is_stalled = False
        """Whether an engine has work and makes no progress; ProgressWatch says so."""
        self.is_engine_kept = False
        """Whether another engine is started when one dies; EngineSupervisor says so."""
        self.engine_expected_at = 0
        """When an engine that is being started again may be ready (monotonic ns); 0 while none is."""
        self.engine_start_seconds = 0.0
        """How long the last engine took to be ready; another is expected to take as long."""
        self._is_draining = False
        self._shows_broken = False
        self._engine: Engine | None = None

    def wall_time(self, moment: int) -> int:
        """A monotonic moment in seconds of wall time, as replies carry it."""
        return (moment + self._wall_offset) // 1_000_000_000

    @property
    def phase(self) -> Phase:
        """What the server is doing."""
        if self._engine is None:
            return Phase.DRAINING if self._is_draining else Phase.LOADING
        is_dead = self._engine.llm.dead_cause is not None
        if is_dead and not self.is_engine_kept:
            return Phase.DEAD
        if self._is_draining:
            return Phase.DRAINING
        if is_dead:
            return Phase.RESTARTING
        if self.is_stalled:
            return Phase.STALLED
        return Phase.BROKEN if self._engine.llm.answers.is_broken else Phase.READY

    def show_brokenness(self) -> None:
        """Let the ring's header say that the model broke, or that it is mended; to be called now and then.

        Whoever starts another engine or ends the server says so itself.
        """
        phase = self.phase
        is_broken = phase is Phase.BROKEN
        if is_broken != self._shows_broken and phase in (Phase.READY, Phase.STALLED, Phase.BROKEN):
            self._shows_broken = is_broken
            self.recorder.doing(Activity.BROKEN if is_broken else Activity.SERVING)

    @property
    def engine(self) -> Engine:
        """The engine; `refusal` has been asked before, so it is there."""
        assert self._engine is not None
        return self._engine

    @property
    def is_engine_there(self) -> bool:
        """Whether the engine was ready once."""
        return self._engine is not None

    def engine_ready(self, engine: Engine) -> None:
        """Let requests in: to the first engine, or to one that takes the place of another."""
        self._engine = engine
        self.profiles.attach(engine.llm)

    def drain(self) -> None:
        """Let no new request in."""
        self._is_draining = True

    def refusal(self) -> ApiError | None:
        """Why a new request is not let in now: None, or a 503."""
        match self.phase:
            case Phase.LOADING:
                return ApiError("the model is being loaded", "not_ready")
            case Phase.DRAINING:
                return ApiError("the server is shutting down", "shutting_down")
            case Phase.RESTARTING:
                restarting = ApiError("the engine died and another is being started", "restarting")
                likely_at = time.monotonic_ns() + int(self.engine_start_seconds * 1e9)
                restarting.retry_after_seconds = seconds_until(self.engine_expected_at or likely_at)
                return restarting
            case Phase.STALLED:
                return ApiError("the engine has work and makes no progress", "stalled")
            case Phase.BROKEN:
                return ApiError("the model gave no usable probabilities several times in a row", "not_ready")
            case Phase.DEAD:
                return ApiError("the engine is gone", "engine_dead", status=503)
        return None

    def served_name(self, asked: str | None) -> str:
        """The model name a reply carries; ApiError 404 for a name that is not served. None asks for the first."""
        names = self.config.model.served_model_names
        if asked is None:
            return names[0]
        if asked not in names:
            served = ", ".join(shown(name) for name in names[:5])
            raise ApiError(f"no model {shown(asked)} here; served: {served}", "model_not_found", param="model")
        return asked


def _tracing(config: VllmConfig, server: ServerConfig) -> Tracing | None:
    """None where no endpoint takes traces, or nothing is recorded."""
    if not server.is_traced or config.observability.recorder == "null":
        return None
    return Tracing(Path(config.run_dir).name, *server.sampling)


def _tool_parser(server: ServerConfig) -> MakeParser | None:
    """What makes a parser for each reply; None where models may not call tools by themselves."""
    name = server.tool_call_parser
    return tool_parser(name) if server.enable_auto_tool_choice and name else None


def _fingerprint(config: VllmConfig) -> str:
    """Changes with the version and with whatever may change the model's answers."""
    digest = hashlib.sha256(repr((config.model, config.parallel)).encode()).hexdigest()
    return f"vllm-obs-{__version__}-{digest[:8]}"
