"""The agent of a host other than host 0: starts its share of the ranks whenever host 0 has an engine."""

import logging
import time
from dataclasses import replace
from queue import Empty, SimpleQueue

from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.executor.multiproc import WORKER_MODULE
from vllm_obs.engine.nodes.agent_ranks import AgentRanks, Links
from vllm_obs.engine.nodes.agent_rings import AgentRings
from vllm_obs.engine.nodes.agent_session import (
    AgentIdentity,
    AgentSession,
    Event,
    Events,
    HostEnded,
    HostLost,
    RanksFailed,
    Refused,
    Stopped,
    Welcomed,
)
from vllm_obs.engine.nodes.cluster_key import key_pairs, read_cluster_key
from vllm_obs.engine.nodes.network import control_endpoint
from vllm_obs.engine.nodes.node_messages import NodeFailed
from vllm_obs.engine.nodes.node_settings import node_settings
from vllm_obs.engine.nodes.remote_nodes import node_title, ranks_of
from vllm_obs.engine.old_rings import prune_old_rings
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessExited

EXIT_STOPPED = 0
FAREWELL_SECONDS = 10.0
"""After host 0's engine was told to end: another may take its place, as after a failure that it outlived."""
PARTING_SECONDS = 1.0
"""How long host 0 may take to close the connection after it was told of a failure."""
RETRY_SECONDS = 2.0
"""After a refusal that is not final."""
HEARTBEAT_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Agent:
    """Connects, runs ranks, and connects again, until it is told to end or host 0 stays away.

    `run_dir` of the configuration is this host's own. All of it happens in the main thread but for the relays.
    """

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder, module: str = WORKER_MODULE) -> None:
        self.events: Events = SimpleQueue()
        self._config = config
        self._recorder = recorder
        self._module = module
        self._endpoint = control_endpoint(config.parallel)
        self._keys = key_pairs(read_cluster_key(config.parallel.cluster_key_file))
        self._identity = AgentIdentity(config.parallel.node_rank, node_settings(config))
        self._rings = AgentRings(config.run_dir)
        self._title = node_title(config.parallel.node_rank)

    def close(self) -> None:
        """Let go of the rings. Idempotent."""
        self._rings.close()

    def run(self) -> int:
        """Serve host 0's engines, one after the other; the exit code. ConfigError when host 0 refuses this host,
        StartupError when it does not come (back), or does not take this host, in time."""
        wait_seconds = self._config.parallel.node_timeout
        has_ended = False
        _logger.info("waiting for host 0 at %s for at most %g s", self._endpoint, wait_seconds)
        while True:
            end = self._serve_once_taken(wait_seconds)
            prune_old_rings(self._config.run_dir)
            if isinstance(end, Stopped):
                return EXIT_STOPPED
            if isinstance(end, Refused):
                raise self._refused(end, wait_seconds)
            if end is None:
                if has_ended:
                    _logger.info("host 0 has ended, and so does this host")
                    return EXIT_STOPPED
                raise StartupError(f"host 0 at {self._endpoint} did not come within {wait_seconds:g} s")
            has_ended = isinstance(end, HostEnded)
            wait_seconds = FAREWELL_SECONDS if has_ended else self._config.parallel.node_timeout
            _logger.info("%s; waiting for host 0 for at most %g s", _told(end), wait_seconds)

    def _serve_once_taken(self, wait_seconds: float) -> Event | None:
        """As `_serve`, but a refusal that is not final is one only when the time is over."""
        deadline = time.monotonic() + wait_seconds
        refusal: Refused | None = None
        while True:
            end = self._serve(deadline - time.monotonic())
            if end is None:
                end = refusal
            if not isinstance(end, Refused) or end.is_final or time.monotonic() + RETRY_SECONDS >= deadline:
                return end
            refusal = end
            _logger.warning("host 0 does not take this host yet: %s", end.cause)
            if (order := self._next_event(RETRY_SECONDS)) is not None:
                return order

    def _refused(self, end: Refused, wait_seconds: float) -> ConfigError | StartupError:
        if end.is_final:
            return ConfigError(f"host 0 at {self._endpoint} refuses this host: {end.cause}")
        return StartupError(
            f"host 0 at {self._endpoint} did not take this host in {wait_seconds:g} s: {end.cause}"
        )

    def _serve(self, wait_seconds: float) -> Event | None:
        """One life of host 0's engine, which has so long to begin; how it ended, None where it did not begin."""
        self._recorder.doing(Activity.WAITING)
        session = AgentSession(self._endpoint, self._keys, self._identity, self.events)
        ranks: AgentRanks | None = None
        try:
            event = self._next_event(wait_seconds)
            if not isinstance(event, Welcomed):
                return event
            ranks = self._start(event, session)
            self._rings.ship(session, event.ring_positions)
            end = self._watch(session)
            if isinstance(end, Stopped):
                session.send(NodeFailed(f"{self._title} was lost: it was told to end", StartupError.exit_code))
            return end
        finally:
            if ranks is not None:
                ranks.stop()
                self._record_ends(ranks)
            self._rings.pause()
            session.close()
            self._drop_events()

    def _start(self, welcomed: Welcomed, session: AgentSession) -> AgentRanks:
        theirs: VllmConfig = from_wire(VllmConfig, welcomed.config)
        own = self._config
        model = replace(theirs.model, path=own.model.path, tokenizer=own.model.tokenizer)
        parallel = replace(theirs.parallel, node_rank=own.parallel.node_rank, master_addr=own.parallel.master_addr)
        config = replace(theirs, model=model, parallel=parallel, run_dir=own.run_dir)
        ranks = ranks_of(config, parallel.node_rank)
        _logger.info(
            "connected to host 0 (engine restart %d): starting ranks %d to %d",
            config.generation,
            ranks[0],
            ranks[-1],
        )
        self._recorder.doing(Activity.SERVING)

        def fail(cause: str, exit_code: int) -> None:
            session.send(NodeFailed(cause, exit_code))
            self.events.put(RanksFailed(cause, exit_code))

        return AgentRanks(config, ranks, Links(session.commands, session.send, fail), self._module)

    def _watch(self, session: AgentSession) -> Event:
        """Until the session ends. After a failure host 0 is given a moment to say what it makes of it."""
        while True:
            event = self._next_event(HEARTBEAT_SECONDS)
            if isinstance(event, RanksFailed):
                _logger.error("%s", event.cause)
                parting = self._next_event(PARTING_SECONDS)
                return event if parting is None or isinstance(parting, RanksFailed) else parting
            if event is not None:
                return event

    def _next_event(self, wait_seconds: float) -> Event | None:
        """What happens next, None when nothing does in that time. The heart beats meanwhile."""
        deadline = time.monotonic() + wait_seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._recorder.heartbeat(time.monotonic_ns())
            try:
                return self.events.get(timeout=min(remaining, HEARTBEAT_SECONDS))
            except Empty:
                continue
        return None

    def _drop_events(self) -> None:
        """What is left of a session that is over; an order to end stays."""
        left: list[Event] = []
        while not self.events.empty():
            left.append(self.events.get_nowait())
        for event in left:
            if isinstance(event, Stopped):
                self.events.put(event)

    def _record_ends(self, ranks: AgentRanks) -> None:
        now = time.monotonic_ns()
        for child in ranks.children.values():
            record = ProcessExited(child.title, child.pid, child.exit_code or 0, now, child.was_told)
            self._recorder.record(record)


def _told(end: Event) -> str:
    """How an engine's life ended, in words."""
    match end:
        case HostLost(cause) | RanksFailed(cause, _):
            return cause
    return "host 0's engine was told to end"
