"""LaunchedEngines: the launcher's engines together, kept alive for as long as one of them is."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server import engine_keeper
from vllm_obs.server.launched_engine import LaunchedBy, LaunchedEngine

logger = logging.getLogger(__name__)


class LaunchedEngines:
    """Used on the launcher's event loop, in its main thread."""

    def __init__(self, launched_by: LaunchedBy) -> None:
        self._engines: list[LaunchedEngine] = []
        self._launched_by = launched_by
        self._given_up: set[int] = set()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self, config: VllmConfig, engine_indices: Iterable[int]) -> None:
        """Start them. StartupError."""
        for index in engine_indices:
            self._engines.append(LaunchedEngine(replace(config, engine_index=index), self._launched_by))

    def readying(self) -> "list[asyncio.Task[EngineFacts]]":
        """A task for each engine that gives its facts once it serves; ConfigError or StartupError if it cannot."""
        return [asyncio.ensure_future(engine.ready()) for engine in self._engines]

    def losses(self, readying: "Iterable[asyncio.Task[EngineFacts]]") -> "list[asyncio.Task[None]]":
        """Of these tasks, which `readying` made, for each another that fails when its engine dies afterwards."""
        pairs = zip(self._engines, readying, strict=True)
        return [asyncio.ensure_future(engine.lost(task)) for engine, task in pairs]

    async def keep(self) -> str:
        """Keep alive those that are there now; why there is none any more, once all budgets are spent."""
        tasks = [asyncio.ensure_future(self._keep(engine)) for engine in self._engines]
        try:
            return await asyncio.shield(self._over)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, engine: LaunchedEngine) -> None:
        while not self._over.done():
            cause = await engine.keep()
            self._given_up.add(engine.index)
            if len(self._given_up) == len(self._engines):
                if not self._over.done():
                    self._over.set_result(cause)
                return
            logger.error("engine %d is given up for now, the others go on: %s", engine.index, cause)
            await engine.clear()
            await self._rest(engine)
            self._given_up.discard(engine.index)

    async def _rest(self, engine: LaunchedEngine) -> None:
        """Return once another is there in its place, or never."""
        while True:
            await asyncio.sleep(engine_keeper.REST_SECONDS)
            if self._launched_by.limits.max_restarts and await engine.revive():
                return

    def forget(self, client_index: int) -> None:
        """That API server has ended: every engine ends what it ran, and expects another in its place."""
        for engine in self._engines:
            engine.forget(client_index)

    def ask_to_stop(self) -> None:
        """Order all to end."""
        for engine in self._engines:
            engine.ask_to_stop()

    @property
    def have_stopped(self) -> bool:
        """Whether none is running."""
        return all(engine.has_stopped for engine in self._engines)

    def close(self) -> None:
        """End what is left of them, now."""
        for engine in self._engines:
            engine.close()
