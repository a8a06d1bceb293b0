"""AbortSender: tells the core which sequences have ended here, while whoever ended them goes on."""

import asyncio
import logging
from collections.abc import Iterable

from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.frontend.client_interface import AsyncEngineClient
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.messages import FinishReason

logger = logging.getLogger(__name__)


class AbortSender:
    """Sends each abort on its own task, so that it goes out even when the caller is being cancelled.

    The sequences count in `queue` until it has. Used from one event loop.
    """

    def __init__(self, client: AsyncEngineClient, queue: FrontQueue) -> None:
        self._client = client
        self._queue = queue
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, request_ids: Iterable[str], reason: FinishReason) -> None:
        """Tell the core that these have ended, if there are any."""
        if ids := list(request_ids):
            self._queue.leaving(ids)
            task = asyncio.get_running_loop().create_task(self._abort(ids, reason))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def wait(self, timeout_seconds: float) -> None:
        """Return once all are sent, or after that time."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=timeout_seconds)

    async def _abort(self, ids: list[str], reason: FinishReason) -> None:
        try:
            await self._client.abort_requests(ids, reason)
        except VllmObsError as error:  # it has no one to tell: the engine is gone, or its queue is full
            logger.warning("An abort was not sent: %s", error)
        finally:
            self._queue.left(ids)
