"""What one API server is doing now, and the engine its routes talk to."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_obs import __version__
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_place import EnginePlace
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.chat_template import ChatTemplate
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.errors import ApiError, seconds_until, shown
from vllm_obs.server.phase import Phase
from vllm_obs.server.pressure import Pressure
from vllm_obs.server.profiles import ServerProfiles
from vllm_obs.server.tool_calls.registry import MakeParser, tool_parser
from vllm_obs.server.trace_context import Tracing
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder


@dataclass(frozen=True)
class Engine:
    """The engines that are ready, with what is needed to talk to them in text; `facts` are what all can take."""

    llm: AsyncLLM
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    facts: EngineFacts
    client: DPLBAsyncMPClient


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
        self.client_index = server.client_index
        self.tracing = _tracing(config, server)
        self.profiles = ServerProfiles(config.run_dir, server.profiler_config, recorder, server.role)
        self.num_open = 0
        self.num_open_http = 0
        self.when_busy: list[Callable[[], None]] = []
        """Called when a request comes to a server that had none."""
        self.count_connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """How many connections are open, and how many there may be; the HTTP server knows."""
        self.pressure = Pressure()
        self.make_tool_parser = _tool_parser(server)
        self.is_stalled = False
        """Whether every engine that is there has work and makes no progress; ProgressWatch says so."""
        self.is_engine_kept = False
        """Whether another engine is started when one dies; EngineSupervisor says so."""
        self.engines_expected_at: dict[int, int] = {}
        """When engines that are being started again may be ready (monotonic ns), by their index."""
        self.engines_given_up: set[int] = set()
        """Engines that have died too often to be started again now."""
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
        return Phase.BROKEN if self._is_broken else Phase.READY

    @property
    def _is_broken(self) -> bool:
        """Whether the model of every engine that is there gives no numbers."""
        answers = self.engine.llm.answers
        up = (place for place in self.engine.client.places if place.is_up)
        return all(answers.is_broken(place.client.engine_index) for place in up)

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
    def is_at_rest(self) -> bool:
        """Whether an engine is there, and nothing is asked of this server, nor under way in the background."""
        return self._engine is not None and not self.num_open_http and not self._engine.llm.num_in_flight

    def http_begins(self) -> None:
        """Another request came."""
        self.num_open_http += 1
        if self.num_open_http == 1:
            for wake in self.when_busy:
                wake()

    @property
    def is_engine_there(self) -> bool:
        """Whether the engine was ready once."""
        return self._engine is not None

    @property
    def engine_states(self) -> dict[str, str]:
        """What has become of each engine, by its label: up, stalled, broken, restarting or given up."""
        places = self._engine.client.places if self._engine is not None else []
        return {str(place.client.engine_index): self._state_of(place) for place in places}

    def _state_of(self, place: EnginePlace) -> str:
        if place.is_up:
            return place.ailment or "up"
        return "given up" if place.client.engine_index in self.engines_given_up else "restarting"

    def engine_ready(self, engine: Engine) -> None:
        """Let requests in."""
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
                expected_at = min(self.engines_expected_at.values(), default=likely_at)
                restarting.retry_after_seconds = seconds_until(expected_at)
                return restarting
            case Phase.STALLED:
                return ApiError("the engine has work and makes no progress", "stalled")
            case Phase.BROKEN:
                return ApiError("the model gave no usable probabilities several times in a row", "not_ready")
            case Phase.DEAD:
                return ApiError("the engine is gone", "engine_dead", status=503)
        return None

    def served_name(self, asked: str | None) -> str:
        """The model name a reply carries; ApiError 404 for a name that is not served. None asks for the first.

        ApiError 400 for None where every request has to name one.
        """
        names = self.config.model.served_model_names
        if asked is None and self.server.require_model:
            raise ApiError("model: should be there", "invalid_value", param="model")
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
    parallel = config.parallel
    division = (parallel.world_size, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    digest = hashlib.sha256(repr((config.model, division)).encode()).hexdigest()
    return f"vllm-obs-{__version__}-{digest[:8]}"
