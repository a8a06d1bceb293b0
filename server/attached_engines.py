"""AttachedEngines: the engines of an API server that owns none, kept true to what its launcher tells of them."""

import asyncio
import logging
import time

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import ConfigError, StartupError, VllmObsError
from vllm_obs.server.attached_link import AttachedLink
from vllm_obs.server.beat import until_beat
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, GIVEN_UP, SERVING, STARTING, EngineNews
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOST_SECONDS = 2.0
"""How long after an engine could not be sent to its end may be untold, before this server ends itself."""
POLL_SECONDS = 0.01


class Attachments:
    """Our ends of the sockets to each engine's life. `route` has this client's index and life."""

    def __init__(self, config: VllmConfig, route: Route, recorder: Recorder) -> None:
        self._config = config
        self._route = route
        self._recorder = recorder
        self._links: dict[int, AttachedLink] = {}

    def attach(self, news: EngineNews) -> AsyncMPClient:
        """Listen for the engine that is starting, or serves already. ConfigError."""
        route = self._route._replace(engine_index=news.engine_index, generation=news.generation)
        link = self._links[news.engine_index] = AttachedLink(route, news.pid, self._config.run_dir, self._recorder)
        if news.facts is not None:
            link.serves(news.facts)
        return AsyncMPClient(link)

    def has(self, news: EngineNews) -> bool:
        """Whether we listen for that life."""
        link = self._links.get(news.engine_index)
        return link is not None and link.route.generation == news.generation

    def give_up_lost(self) -> str | None:
        """The cause, where an engine cannot be sent to whose end nobody tells."""
        causes = [link.give_up_lost(LOST_SECONDS) for link in self._links.values()]
        return next(filter(None, causes), None)

    def tell(self, news: EngineNews) -> None:
        """Let the link to that life know; there may be another by now."""
        link = self._links.get(news.engine_index)
        if link is None or link.route.generation != news.generation:
            return
        if news.state == SERVING and news.facts is not None:
            link.serves(news.facts)
        elif news.state == DEAD:
            link.ended(news.cause)


class AttachedEngines:
    """Takes the news of the engines, once the first lives are attached, if any. Used on the event loop.

    In the place of one that died, or was not there yet, another life is let in as soon as it can be sent to.
    """

    def __init__(self, api: ApiServer, client: DPLBAsyncMPClient, attachments: Attachments) -> None:
        self.client = client
        self._api = api
        self._attachments = attachments
        self._coming: set[asyncio.Task[None]] = set()
        self._own_deaths: dict[int, bool] = {}
        self._last_lives: dict[int, EngineNews] = {}
        loop = asyncio.get_running_loop()
        self._given_up: asyncio.Future[str] = loop.create_future()
        self._failed: asyncio.Future[str] = loop.create_future()

    def may_blame(self, engine_index: int, cause: str) -> bool:
        """Whether the launcher holds that the engine may have died of what it ran."""
        return self._own_deaths.get(engine_index, False)

    def tell(self, news: EngineNews) -> None:
        """What has become of an engine."""
        index = news.engine_index
        if news.state == DEAD:  # the next news may come before the loss has been dealt with
            self._own_deaths[index] = news.is_its_own
        self._attachments.tell(news)
        if news.state in (STARTING, SERVING):
            self._comes(news)
        elif news.state == EXPECTED:
            self._api.engines_expected_at[index] = time.monotonic_ns() + int(news.seconds * 1e9)
        elif news.state == GIVEN_UP:
            self._give_up(index, news.cause)

    def fail(self, cause: str) -> None:
        """This server cannot go on, and has to be replaced."""
        if not self._failed.done():
            self._failed.set_result(cause)

    def _comes(self, news: EngineNews) -> None:
        """There is a life to attach to: one that starts, or one that began before this server did."""
        index = news.engine_index
        self._api.engines_given_up.discard(index)
        last = self._last_lives.get(index)
        self._last_lives[index] = news
        if self._attachments.has(news) or (last is not None and last.generation == news.generation):
            return
        task = asyncio.create_task(self._attach(news), name=f"attach engine {index}")
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _attach(self, news: EngineNews) -> None:
        """Attach to another life; one that does not become ready is told of by the next news."""
        try:
            client = await self._listen_for(news)
        except VllmObsError as error:
            logger.warning("cannot connect to engine %d: %s", news.engine_index, error)
            return
        except Exception:
            logger.exception("cannot connect to engine %d", news.engine_index)
            self.fail(f"what attaches to engine {news.engine_index} failed")
            return
        try:
            await self._let_in(client, news)
        except VllmObsError as error:
            logger.warning("cannot connect to engine %d: %s", news.engine_index, error)
            client.shutdown(timeout_seconds=0)
        except Exception:
            logger.exception("cannot connect to engine %d", news.engine_index)
            self.fail(f"what lets engine {news.engine_index} in failed")

    async def _listen_for(self, news: EngineNews) -> AsyncMPClient:
        """Our ends of the sockets, tried again while it is the life that there is. ConfigError or StartupError."""
        deadline = time.monotonic() + self._api.server.startup_timeout
        while True:
            latest = self._last_lives[news.engine_index]
            if latest.generation != news.generation:
                raise StartupError("another has taken its place")
            try:
                return self._attachments.attach(latest)
            except ConfigError as error:
                if time.monotonic() >= deadline:
                    raise
                logger.warning("engine %d cannot be attached to yet: %s", news.engine_index, error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _let_in(self, client: AsyncMPClient, news: EngineNews) -> None:
        """Let it in once it can be sent to. StartupError when it ended before."""
        index = news.engine_index
        self.client.adopt(client)
        facts = await client.ready(self._api.server.startup_timeout)
        place = self.client.place(index)
        if self._is_first:  # the start waits for it
            self.client.let_in(client)
        else:
            while not self._api.is_engine_there:  # what starts has a deadline of its own
                await asyncio.sleep(POLL_SECONDS)
            llm, before = self._api.engine.llm, place.client
            if place.was_there:
                await llm.losses.wait(index)
            if client.dead_cause is not None:
                raise StartupError(client.dead_cause)
            llm.let_in(client, facts)
            before.shutdown(timeout_seconds=0)
        self._api.engines_expected_at.pop(index, None)
        which = f" (restart {news.generation})" if news.generation else ""
        logger.info("connected to engine %d%s", index, which)

    @property
    def _is_first(self) -> bool:
        """Whether this server is still without any engine."""
        return not self._api.is_engine_there and not any(place.was_there for place in self.client.places)

    def _give_up(self, engine_index: int, cause: str) -> None:
        self._api.engines_given_up.add(engine_index)
        self._api.engines_expected_at.pop(engine_index, None)
        if len(self._api.engines_given_up) == len(self.client.clients) and not self._given_up.done():
            self._api.is_engine_kept = False
            self._given_up.set_result(cause)

    @property
    def engines(self) -> list[AsyncMPClient]:
        """The clients of all engines."""
        return self.client.clients

    async def keep(self) -> str:
        """Why this server cannot go on.

        The launcher has given all engines up, or here they are not read, not reached, or something else failed.
        """
        self._api.is_engine_kept = self._api.server.engine_restarts > 0
        self._api.engine.llm.losses.may_blame = self.may_blame
        watches = [asyncio.ensure_future(self._wait_unread()), asyncio.ensure_future(self._wait_lost())]
        try:
            ends = {self._given_up, self._failed, *watches}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()

    async def _wait_lost(self) -> str:
        """The cause, once an engine cannot be sent to and the launcher does not tell its end: only we cannot."""
        while (cause := self._attachments.give_up_lost()) is None:
            await asyncio.sleep(until_beat(LOOK_SECONDS))
        return cause

    async def _wait_unread(self) -> str:
        """The cause, once none can be used here though one lives: whoever reads the outputs has failed at it.

        The launcher knows nothing of that, and starts no other: this server has to end.
        """
        while True:
            cause = await self._api.engine.llm.wait_dead()
            if any(client.dead_cause is None for client in self.client.clients):
                return cause
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def are_given_up(self) -> bool:
        """Whether the launcher has given all of them up."""
        return self._given_up.done()

    async def close(self) -> None:
        """Attach to nothing any more, and take our ends of the sockets away."""
        for task in self._coming:
            task.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)
        self.client.shutdown(timeout_seconds=0)
