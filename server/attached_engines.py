"""AttachedEngines: the engines of an API server that owns none, kept true to what its launcher tells of them."""

import asyncio
import logging
import time

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import VllmObsError
from vllm_obs.server.attached_link import AttachedLink
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, GIVEN_UP, SERVING, STARTING, EngineNews
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


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
    """Takes the news of the engines, once the first lives are attached. Used on the event loop.

    In the place of one that died another life is let in as soon as it can be sent to.
    """

    def __init__(self, api: ApiServer, client: DPLBAsyncMPClient, attachments: Attachments) -> None:
        self.client = client
        self._api = api
        self._attachments = attachments
        self._coming: set[asyncio.Task[None]] = set()
        self._own_deaths: dict[int, bool] = {}
        self._given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def may_blame(self, engine_index: int, cause: str) -> bool:
        """Whether the launcher holds that the engine may have died of what it ran."""
        return self._own_deaths.get(engine_index, False)

    def tell(self, news: EngineNews) -> None:
        """What has become of an engine."""
        index = news.engine_index
        if news.state == DEAD:  # the next news may come before the loss has been dealt with
            self._own_deaths[index] = news.is_its_own
        self._attachments.tell(news)
        if news.state == STARTING:
            self._api.engines_given_up.discard(index)
            task = asyncio.create_task(self._let_in(news), name=f"attach engine {index}")
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)
        elif news.state == EXPECTED:
            self._api.engines_expected_at[index] = time.monotonic_ns() + int(news.seconds * 1e9)
        elif news.state == GIVEN_UP:
            self._give_up(index, news.cause)

    async def _let_in(self, news: EngineNews) -> None:
        """Attach to another life; one that does not become ready is told of by the next news."""
        client = self._attachments.attach(news)
        self.client.adopt(client)
        try:
            facts = await client.ready(self._api.server.startup_timeout)
        except VllmObsError as error:
            logger.warning("engine %d is not let in: %s", news.engine_index, error)
            client.shutdown(timeout_seconds=0)
            return
        llm = self._api.engine.llm
        await llm.losses.wait(news.engine_index)
        self._api.engines_expected_at.pop(news.engine_index, None)
        before = self.client.place(news.engine_index).client
        llm.let_in(client, facts)
        before.shutdown(timeout_seconds=0)
        logger.info("engine %d is let in (generation %d)", news.engine_index, news.generation)

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
        """Why there is no engine any more: the launcher has given all of them up, or nobody here reads them."""
        self._api.is_engine_kept = self._api.server.engine_restarts > 0
        self._api.engine.llm.losses.may_blame = self.may_blame
        unread = asyncio.ensure_future(self._wait_unread())
        try:
            done, _ = await asyncio.wait({self._given_up, unread}, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            unread.cancel()

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
