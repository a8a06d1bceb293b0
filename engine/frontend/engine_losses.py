"""EngineLosses: ends the sequences of an engine that died, once it is known whether one of them is to blame."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from vllm_obs.engine.errors import EngineLostError, RequestFailedError
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.frontend.output_processor import OutputProcessor
from vllm_obs.engine.frontend.poison_book import OpenRequest, PoisonBook, fingerprints
from vllm_obs.engine.messages import FinishReason

logger = logging.getLogger(__name__)


class EngineLoss(NamedTuple):
    """An engine is gone, and the streams of its `num_open` sequences have ended with that cause."""

    cause: str
    num_open: int


async def _at_once() -> None:
    """Nobody knows more."""


class EngineLosses:
    """Used from the event loop that reads the engines' outputs. `on_end` is called when a loss is dealt with.

    `poison` keeps what is not run again, because engines crashed on it. An engine runs `max_num_seqs` at once.
    """

    def __init__(
        self, outputs: OutputProcessor, queue: FrontQueue, max_num_seqs: int, on_end: Callable[[], None]
    ) -> None:
        self.poison = PoisonBook()
        self.may_blame: Callable[[int, str], bool] = lambda engine_index, cause: False
        """Whether an engine that died of that cause may have done so of what it ran."""
        self.judged: Callable[[], Awaitable[None]] = _at_once
        """Returns once those who know more have told the poison book who is to blame, or have had time to."""
        self._outputs = outputs
        self._queue = queue
        self._max_num_seqs = max_num_seqs
        self._on_end = on_end
        self._told: dict[int, asyncio.Future[EngineLoss]] = {}
        self._blaming: set[asyncio.Task[None]] = set()

    def lose(self, loss: EngineLostError) -> None:
        """An engine died. None of its sequences can be sent again before it is known who is to blame."""
        lost = self._outputs.open_requests(self._max_num_seqs, loss.request_ids, loss.engine_index)
        if (lost or self.poison.shared) and self.may_blame(loss.engine_index, str(loss)):
            task = asyncio.get_running_loop().create_task(self._blame(loss, lost))
            self._blaming.add(task)
            task.add_done_callback(self._blaming.discard)
        else:
            self._end(loss, len(lost))

    async def wait(self, engine_index: int) -> EngineLoss:
        """Return once that engine is lost, and its streams have ended."""
        return await asyncio.shield(self._told_of(engine_index))

    def forget(self, engine_index: int) -> None:
        """Another is there in its place."""
        self._told.pop(engine_index, None)

    async def close(self) -> None:
        """Find out nothing any more."""
        for task in self._blaming:
            task.cancel()
        await asyncio.gather(*self._blaming, return_exceptions=True)

    async def _blame(self, loss: EngineLostError, lost: list[OpenRequest]) -> None:
        """Find out which request the engine may have crashed on; the digests are made off the event loop."""
        try:
            digests = await asyncio.to_thread(fingerprints, lost)
            if refused := self.poison.crashed(lost, digests):
                names = ", ".join(refused[:8])
                logger.error("the engine seems to have crashed on %s: not run again for now", names)
            await self.judged()
        except Exception:
            logger.exception("it could not be found out which request an engine crashed on")
        finally:
            self._end(loss, len(lost))

    def _end(self, loss: EngineLostError, num_open: int) -> None:
        failure = RequestFailedError(str(loss), "engine_dead")
        self._outputs.end(loss.request_ids, FinishReason.ERROR, failure)
        self._queue.lost(loss.request_ids)
        self._queue.detach(loss.engine_index)
        told = self._told_of(loss.engine_index)
        if not told.done():
            told.set_result(EngineLoss(str(loss), num_open))
        self._on_end()

    def _told_of(self, engine_index: int) -> "asyncio.Future[EngineLoss]":
        if engine_index not in self._told:
            self._told[engine_index] = asyncio.get_running_loop().create_future()
        return self._told[engine_index]
