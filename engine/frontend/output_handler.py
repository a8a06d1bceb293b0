"""OutputHandler: the task that reads what the engines say, as long as any of them may say something."""

import asyncio
import logging
from collections.abc import Callable

from vllm_obs.engine.errors import EngineDeadError, EngineLostError
from vllm_obs.engine.frontend.client_interface import AsyncEngineClient
from vllm_obs.engine.frontend.engine_losses import EngineLosses
from vllm_obs.engine.messages import EngineCoreOutputs

logger = logging.getLogger(__name__)

READING_FAILED = "the task that reads the engine's outputs failed"


class OutputHandler:
    """Gives `take` the outputs of each step, and tells `losses` of each engine that died.

    Whose outputs `take` fails on are given up with their engines. `on_end` is called with the cause once no more
    outputs will come of any engine.
    """

    def __init__(
        self,
        client: AsyncEngineClient,
        losses: EngineLosses,
        take: Callable[[EngineCoreOutputs], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.end_cause: str | None = None
        """Why nothing is read any more, None while it is."""
        self._client = client
        self._losses = losses
        self._take = take
        self._on_end = on_end
        self._reading: asyncio.Task[None] | None = None
        self._over: asyncio.Future[str]

    def start(self) -> None:
        """Begin to read. Call it on the event loop."""
        self._over = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name="output handler")

    async def wait_over(self) -> str:
        """Return the cause once nothing is read any more, whatever engine is let in."""
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        """Read nothing any more; nobody is told."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            await self._read_always()
        except EngineDeadError as error:
            self._end(str(error))
        except Exception:  # even what deals with failures has failed
            logger.exception("The task that reads the engine's outputs ended")
            self._end(READING_FAILED)

    async def _read_always(self) -> None:
        while True:
            try:
                await self._read_on()
            except EngineLostError as loss:
                self._losses.lose(loss)
            except EngineDeadError:
                raise
            except Exception:
                logger.exception("The task that reads the engine's outputs failed")
                self._client.give_up(READING_FAILED)

    async def _read_on(self) -> None:
        while True:
            self._take(await self._client.get_output())
            await asyncio.sleep(0)  # outputs that wait already must not keep the readers from running

    def _end(self, cause: str) -> None:
        self.end_cause = cause
        if not self._over.done():
            self._over.set_result(cause)
        self._on_end(cause)
