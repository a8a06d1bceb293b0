"""AttachedLifecycle: the life of one of several API servers, whose launcher owns engines, port and Observer."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from vllm_obs.engine.absent_engine import AbsentEngine
from vllm_obs.engine.child_main import Owner
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient, engine_indices
from vllm_obs.engine.codec import write_fields
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.crash_suspects import SAME_CRASH_SECONDS, Suspect
from vllm_obs.engine.startup_phases import StartupPhases
from vllm_obs.server.api_server_settings import ApiServerSettings
from vllm_obs.server.attached_engines import AttachedEngines, Attachments
from vllm_obs.server.beat import until_beat
from vllm_obs.server.engine_news import NewsBox
from vllm_obs.server.handed_connections import HandedConnections
from vllm_obs.server.launcher_messages import (
    BLAMED,
    CUT_OFF,
    DRAIN,
    DRAINED,
    MAX_SUSPECTS,
    OPEN,
    PROFILE,
    RELOAD,
    STATUS,
    SUSPECTS,
    TELEMETRY,
    ServerStatus,
    read_digests,
)
from vllm_obs.server.lifecycle import Lifecycle
from vllm_obs.server.observer import TelemetryOrder
from vllm_obs.server.profiles import read_request
from vllm_obs.server.service_notify import NO_SERVICE, ServiceNotify
from vllm_obs.server.state import Engine
from vllm_obs.server.stop_orders import StopOrders
from vllm_obs.telemetry.recorder import ProcessRecorder

logger = logging.getLogger(__name__)

REST_SECONDS = 0.5
"""So often it is looked for what has changed while nothing is asked of this server."""
SIGN_SECONDS = 1.0
"""About so often, well below three times the least `--stall-timeout`, the launcher hears that the loop moves."""
BUSY_REPORT_SECONDS = 0.02
"""And so often, at most, while something is, or connections come and go."""
JUDGED_SECONDS = SAME_CRASH_SECONDS + 0.5
"""How long the streams of an engine that died are kept at most until it is known who is to blame."""
STAY_SECONDS = 10.0
"""So long a server that has drained waits for the others at most, beyond their time to drain."""


class AttachedLifecycle(Lifecycle):
    """Serves the connections it is handed, with engines it is attached to, until its launcher has had enough.

    Orders stand for signals, and what others print or tell the service manager the launcher does.
    """

    def __init__(self, settings: ApiServerSettings, recorder: ProcessRecorder, box: NewsBox) -> None:
        """Wait until there is a life of each engine to attach to. ConfigError or StartupError.

        One that takes the place of another server waits for none: it takes engines as they come.
        """
        config, server = settings.config, settings.server
        self._settings = settings
        self._box = box
        self._attachments = Attachments(config, settings.route, recorder)
        client = DPLBAsyncMPClient.balanced(config, self._first_engines())
        super().__init__(config, server, client, recorder)
        self._client = client
        self._told: ServerStatus | None = None
        self._told_at = 0.0
        self._is_woken = asyncio.Event()
        self._may_open = asyncio.Event()
        self._judgement = asyncio.Event()
        self._engines: AttachedEngines | None = None
        self._reporting: asyncio.Task[None] | None = None

    def _first_engines(self) -> list[AsyncMPClient]:
        config, route = self._settings.config, self._settings.route
        indices = engine_indices(config.parallel)
        if route.client_life:  # any of them may rest for minutes, or load, while the others serve
            return [AbsentEngine(index) for index in indices]
        lives = self._box.first_lives(indices, self._settings.server.startup_timeout)
        return [self._attachments.attach(life) for life in lives]

    def serve_for(self, owner: Owner, phases: StartupPhases) -> int:
        """Serve until the launcher says that it is over; the exit code."""
        self._owner = owner
        with socket.socket(socket.AF_UNIX) as nowhere:  # the life of a server is told of a listener; it has none
            return self.run(nowhere, owner.spawned_at, phases)

    def _make_signals(self) -> StopOrders:
        self._orders = StopOrders()
        self._take(DRAIN, self._orders.drain)
        self._take(CUT_OFF, self._orders.cut_off)
        loop = asyncio.get_running_loop()
        self._owner.on_stop(lambda: _call_in(loop, self._orders.end))
        return self._orders

    def _take(self, kind: str, act: Callable[[], None]) -> None:
        self._take_payload(kind, lambda payload: act())

    def _take_payload(self, kind: str, act: Callable[[Any], None]) -> None:
        """Do that on the loop for every such order."""
        loop = asyncio.get_running_loop()
        self._owner.on_order(kind, lambda payload: _call_in(loop, act, payload))

    def _make_service(self) -> ServiceNotify:
        return NO_SERVICE

    async def _listen(self, sock: socket.socket) -> "asyncio.Task[None]":
        engines = self._engines = AttachedEngines(self._api, self._client, self._attachments)
        self._supervisor = engines
        self._box.give_to(engines.tell)
        self._take(OPEN, self._may_open.set)
        self._take(RELOAD, self._keys.ask)
        self._take_payload(TELEMETRY, lambda payload: self._set_telemetry(TelemetryOrder.read(payload)))
        self._take_payload(PROFILE, lambda payload: self._api.profiles.obey(read_request(payload)))
        self._take_payload(SUSPECTS, self._hear_of_suspects)
        self._take_payload(BLAMED, self._hear_who_is_blamed)
        serving = await self._http.start_without_listener()
        self._http.when_closed(self._is_woken.set)
        self._api.when_busy.append(self._is_woken.set)
        self._handed = HandedConnections(self._settings.handover, self._take_connection)
        self._reporting = asyncio.create_task(self._report(), name="report to the launcher")
        self._reporting.add_done_callback(self._see_report_end)
        return serving

    async def _load(self) -> Engine:
        """As any server's; and then until the others are ready, too, so that all let requests in or none."""
        engine = await super()._load()
        self._owner.say(READY)
        await self._may_open.wait()
        return engine

    def _open(self, engine: Engine) -> None:
        losses = engine.llm.losses
        losses.judged = self._wait_judged
        losses.poison.shared, losses.poison.on_crash = True, self._tell_suspects
        super()._open(engine)

    def _tell_suspects(self, suspects: list[Suspect]) -> None:
        rows = [list(suspect) for suspect in suspects]
        num_lost = 0
        for begin in range(0, len(rows), MAX_SUSPECTS):
            num_lost += not self._owner.try_say(SUSPECTS, rows[begin : begin + MAX_SUSPECTS])
        if not num_lost:  # an empty one says that it was all
            self._owner.try_say(SUSPECTS, [])

    def _hear_of_suspects(self, payload: Any) -> None:
        if self._api.is_engine_there:
            self._api.engine.llm.losses.poison.heard(read_digests(payload))

    async def _wait_judged(self) -> None:
        """Return once the launcher has told of a crash who is to blame; it does not take long, or hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JUDGED_SECONDS):
                await self._judgement.wait()

    def _hear_who_is_blamed(self, payload: Any) -> None:
        """Who waits for it goes on, and who waits from now on does so for the next."""
        judgement, self._judgement = self._judgement, asyncio.Event()
        judgement.set()
        if self._api.is_engine_there and payload is not None:
            (digest,) = read_digests([payload])
            self._api.engine.llm.losses.poison.blame(digest)

    def _take_connection(self, connection: socket.socket) -> None:
        self._http.take(connection)
        self._is_woken.set()

    async def _report(self) -> None:
        """Tell the launcher whenever something has changed, and that the loop goes round."""
        while True:
            self._tell_status()
            if self._is_busy or await self._is_disturbed():
                await asyncio.sleep(BUSY_REPORT_SECONDS)

    @property
    def _is_busy(self) -> bool:
        """Whether what the launcher is told may change without somebody's coming or leaving."""
        has_sequences = any(place.open_ids for place in self._client.places)
        return has_sequences or self._api.num_open > 0 or self._api.num_open_http > 0

    async def _is_disturbed(self) -> bool:
        """Wait until somebody comes, asks or leaves, for some time; whether it was so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until_beat(REST_SECONDS)):
                await self._is_woken.wait()
        is_woken = self._is_woken.is_set()
        self._is_woken.clear()
        return is_woken

    def _see_report_end(self, reporting: "asyncio.Task[None]") -> None:
        """A server that its launcher knows nothing of any more is to be replaced."""
        if reporting.cancelled() or self._engines is None:
            return
        logger.error("the reports to the launcher ended", exc_info=reporting.exception())
        self._engines.fail("what reports to the launcher failed")

    def _tell_status(self) -> None:
        status, now = self._status(), time.monotonic()
        if status == self._told and now - self._told_at < SIGN_SECONDS:
            return
        if self._owner.try_say(STATUS, write_fields(status)):
            # Else the launcher reads nothing, which must not hold up streams.
            self._told, self._told_at = status, now

    def _status(self) -> ServerStatus:
        api = self._api
        num_connections, _ = api.count_connections()
        sequences = [(place.client.engine_index, len(place.open_ids)) for place in self._client.places]
        return ServerStatus(api.phase.value, self._handed.num_taken, num_connections, api.num_open, sequences)

    def _say_ready(self, engine: Engine, sock: socket.socket, started_at: int) -> None:
        self._tell_status()

    def _say_last_words(self) -> None:
        """The launcher has its own."""

    async def _drain(self, llm: AsyncLLM) -> int:
        return await self._stay(await super()._drain(llm))

    async def _bury(self, cause: str) -> int:
        code = await super()._bury(cause)
        if self._engines is not None and self._engines.are_given_up:
            return await self._stay(code)
        self._handed.stop()  # others serve, and another takes this one's place at once
        return code

    async def _stay(self, code: int) -> int:
        """Refuse who still comes, until the others have drained too."""
        self._owner.say(DRAINED, code)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._api.server.shutdown_timeout + STAY_SECONDS):
                await self._orders.over.wait()
        self._handed.stop()
        return code

    async def _end_engine(self) -> None:
        """Our ends of the sockets; the engines go on."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._api.is_engine_there:
            await self._api.engine.llm.shutdown()
        if self._engines is not None:
            await self._engines.close()


def _call_in(loop: asyncio.AbstractEventLoop, act: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(act, *arguments)
