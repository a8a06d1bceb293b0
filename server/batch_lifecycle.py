"""The life of one batch: load, answer all lines, and end with the exit code that says how it went."""

import asyncio
import socket

from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.startup_phases import StartupPhases
from vllm_obs.server.app import build_app
from vllm_obs.server.batch_files import BatchFileError, BatchFiles
from vllm_obs.server.batch_job import BatchJob
from vllm_obs.server.batch_progress import BatchProgress
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.exit_codes import EXIT_BROKEN, EXIT_CUT_OFF, EXIT_DRAINED
from vllm_obs.server.inspector_notice import InspectorNotice
from vllm_obs.server.lifecycle import LAST_WORDS_SECONDS, Lifecycle
from vllm_obs.server.observer import Observer
from vllm_obs.server.observer_settings import inspect_port
from vllm_obs.server.phase import Phase
from vllm_obs.server.polling import wait_until
from vllm_obs.server.state import Engine
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.console import tell
from vllm_obs.telemetry.recorder import ProcessRecorder

SPARE_REQUESTS = 16
"""With these and twice as many requests as run at once, one waits whenever one ends."""


class BatchLifecycle(Lifecycle):
    """A server without a listener: its only client is the batch."""

    def __init__(
        self,
        config: VllmConfig,
        server: ServerConfig,
        client: DPLBAsyncMPClient,
        recorder: ProcessRecorder,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(config, server, client, recorder, observer)
        self._inspector = InspectorNotice(_say)
        self._inspector.allow()
        self._num_at_once = 2 * config.scheduler.max_num_seqs * len(client.clients) + SPARE_REQUESTS

    def run_batch(self, files: BatchFiles, started_at: int, phases: StartupPhases | None = None) -> int:
        """Answer the input's lines; the exit code: 0 all are, 1 some failed or are cut off, 70 the engine died.

        ConfigError or StartupError when the engine cannot start.
        """
        self._job = BatchJob(files, self._num_at_once, lambda: self._api.phase is Phase.READY)
        with socket.socket(socket.AF_UNIX) as nowhere:  # the life of a server is told of a listener; it has none
            return self.run(nowhere, started_at, phases)

    async def _serve(self, sock: socket.socket, started_at: int) -> int:
        app = build_app(self._api)
        self._phases.end("listen")
        self._start_batch_observer()
        try:
            engine = await self._signals.unless_first(self._load())
            if engine is None:
                return EXIT_CUT_OFF
            self._open(engine)
            running = asyncio.create_task(self._job.run(app), name="batch")
            return await self._watch_job(engine, running)
        finally:
            self._recorder.doing(Activity.STOPPING)

    def _start_batch_observer(self) -> None:
        if self._observer is None:
            return
        self._observer.start("", inspect_port(self._api.server, None), self._obey)
        self._phases.end("start observer")
        self._inspector.follow(self._observer)

    async def _watch_job(self, engine: Engine, running: "asyncio.Task[None]") -> int:
        """Wait for the end of the job, of the engine, or for a signal; the exit code."""
        progress = BatchProgress(self._job)
        telling = asyncio.create_task(progress.run(), name="batch progress")
        died = asyncio.ensure_future(engine.llm.wait_dead())
        signalled = asyncio.ensure_future(self._signals.first.wait())
        try:
            await asyncio.wait({running, died, signalled}, return_when=asyncio.FIRST_COMPLETED)
            num_cut_off = 0 if running.done() else await self._wind_up(engine, running)
            telling.cancel()
            progress.summary(num_cut_off)
            return self._exit_code(engine, running)
        finally:
            for task in (running, telling, died, signalled):
                task.cancel()
            await asyncio.gather(running, telling, died, signalled, return_exceptions=True)

    async def _wind_up(self, engine: Engine, running: "asyncio.Task[None]") -> int:
        """Read no more, give what is under way its time, and end it; how many requests were cut off."""
        self._job.stop()
        timeout = self._api.server.shutdown_timeout
        if engine.llm.dead_cause is None:
            num = self._job.num_under_way
            _say(f"stopping: {num} request(s) have {timeout:g} s to finish; once more cuts them off")
        else:
            # They have been told; what still waits to be sent never will be.
            timeout = LAST_WORDS_SECONDS
        await wait_until(lambda: running.done() or self._signals.second.is_set(), timeout)
        return 0 if running.done() else self._job.num_under_way

    def _exit_code(self, engine: Engine, running: "asyncio.Task[None]") -> int:
        if (cause := engine.llm.dead_cause) is not None:
            _say(f"the engine died: {cause}")
            return EXIT_BROKEN
        if not running.done() or self._signals.first.is_set():
            return EXIT_CUT_OFF
        try:
            running.result()
        except BatchFileError as error:
            _say(str(error))
            return EXIT_CUT_OFF
        return EXIT_CUT_OFF if self._job.num_failed else EXIT_DRAINED


def _say(text: str) -> None:
    """Tell people; standard output may be the batch's own."""
    tell(text)
