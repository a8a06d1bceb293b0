"""BatchJob: takes the lines of a batch to the application, a bounded number at a time, and writes what comes."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from vllm_obs.server.batch_call import Reply, call_app
from vllm_obs.server.batch_files import BatchFiles, Line, LineReader, LineWriter
from vllm_obs.server.batch_lane import Lane
from vllm_obs.server.batch_line import BadLineError, output_line, read_request
from vllm_obs.server.errors import ApiError
from vllm_obs.server.request_id import new_id

logger = logging.getLogger(__name__)

LANE_CLOSE_SECONDS = 2.0
PAUSE_SECONDS = 0.1


class BatchJob:
    """One batch. As many lines are held as are under way; answers are written as they come, in any order.

    `may_send()` is asked before each request; while it says no, lines wait.
    """

    def __init__(self, files: BatchFiles, num_at_once: int, may_send: Callable[[], bool] = lambda: True) -> None:
        self.lines = LineReader(files.input)
        self.num_answered = 0
        self.num_failed = 0
        self.num_under_way = 0
        self._writer = LineWriter(files.output)
        self._num_at_once = num_at_once
        self._may_send = may_send
        self._is_stopped = False
        self._reading: set[asyncio.Task[None]] = set()

    async def run(self, app: ASGIApp) -> None:
        """Answer all lines; ends sooner after `stop`. Cancelling it cuts off what is under way.

        BatchFileError when the input cannot be read on or the output not be written.
        """
        self._app = app
        self._input_lane, self._output_lane = Lane("batch input"), Lane("batch output")
        tasks = [asyncio.create_task(self._work()) for _ in range(self._num_at_once)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._output_lane.close(LANE_CLOSE_SECONDS)
            # Who reads a terminal may never come back.
            self._input_lane.close(0.0 if self._is_stopped else LANE_CLOSE_SECONDS)

    def stop(self) -> None:
        """Take no more lines; what is under way goes on."""
        self._is_stopped = True
        for task in self._reading:
            task.cancel()

    async def _work(self) -> None:
        while not self._is_stopped and (line := await self._next()) is not None:
            with self._counted():
                custom_id, reply = await self._answer(line)
                written = output_line(custom_id, reply)
                await self._output_lane.call(lambda: self._writer.write(written))  # noqa: B023 (it is awaited)
            self.num_answered += 1
            self.num_failed += not reply.is_ok

    async def _next(self) -> Line | None:
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            return await self._input_lane.call(self.lines.next)
        finally:
            self._reading.discard(task)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.num_under_way += 1
        try:
            yield
        finally:
            self.num_under_way -= 1

    async def _answer(self, line: Line) -> tuple[str | None, Reply]:
        """The id that the line gives itself, and the reply to it."""
        try:
            request = read_request(line)
        except BadLineError as error:
            return error.custom_id, error.reply
        while not self._may_send():
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            return request.custom_id, await call_app(self._app, request.url, request.body)
        except Exception:
            logger.exception("line %d failed", line.number)
            lost = ApiError("internal error", "internal_error")
            return request.custom_id, Reply(lost.status, new_id(), lost.body())
