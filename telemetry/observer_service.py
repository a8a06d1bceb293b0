"""ObserverService: one Observer with its views, its loop and its API, over a run's rings or a recording."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from vllm_obs.telemetry.inspect_app import build_inspect_app
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_server import InspectServer
from vllm_obs.telemetry.inspect_state import run_view
from vllm_obs.telemetry.inspect_steps import NewSteps
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_loop import ObserverLoop
from vllm_obs.telemetry.observer_views import ObserverViews
from vllm_obs.telemetry.recorder import NullRecorder, ProcessRecorder
from vllm_obs.telemetry.telemetry_control import TelemetryControl

EVENT_SECONDS = 0.5
SAVE_PAUSE = 50
"""So many times as long as it took is a checkpoint of upkeep followed by none: 2 % of the time at most is theirs.
A scrape is always followed by one."""


class ObserverService:
    """Ready to drain once made; serves from `start` on; ends by `end`.

    `root_pid` is the process that `process_*` is about, `variables` the environment that OTLP is set up by.
    """

    def __init__(
        self,
        observer: Observer,
        config: ObserverConfig,
        root_pid: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.observer = observer
        self.config = config
        self.views = ObserverViews(observer, config, root_pid, variables or {})
        self.save: Callable[[], object] = lambda: None
        """Keeps what was derived, so that another Observer can go on from it; called between two facts."""
        self.say_alive: Callable[[], object] = lambda: None
        """Tells the owner, about once a second, that this goes on."""
        self.recorder: ProcessRecorder = NullRecorder()
        self._new_steps = NewSteps()
        observer.add_views([self._new_steps])
        self._loop = ObserverLoop(observer, self._upkeep)
        self.control = TelemetryControl(observer, config, self._loop.catch_up)
        self.context = InspectContext(
            observer=observer,
            config=config,
            catch_up=self._loop.catch_up,
            render_metrics=self._render,
            quantiles=self.views.metrics.quantiles,
            export_counts=self.views.export_counts,
            control=self.control,
        )
        self._num_events = 0
        self._save_due_at = 0

    async def start(self) -> InspectServer:
        """Listen. Raises ListenError."""
        config = self.config
        socket_dir = config.run_dir if self.observer.is_live else None
        app = build_inspect_app(self.context)
        server = InspectServer(app, config.inspect_host, config.inspect_port, socket_dir)
        try:
            await server.start()
        except BaseException:
            server.close()
            raise
        return server

    def end(self) -> None:
        """Finish: a last drain, then `run` returns. From the event loop's thread."""
        self._loop.end()

    async def run(self) -> None:
        """Drain and tell until `end`."""
        telling = asyncio.create_task(self._tell(), name="events")
        try:
            await self._loop.run()
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            self.context.hub.close()
            self.observer.facts.save(time.monotonic_ns(), time.time_ns())

    async def close(self) -> None:
        """Send what the exporters still hold (in a thread, with a deadline) and let go of everything."""
        await asyncio.to_thread(self.views.close, self.observer.now())
        self.observer.close()

    def _render(self, accept: str) -> tuple[bytes, str]:
        rendered = self.views.render(accept)
        # What has been shown is kept, so that no counter goes back if this process is killed now.
        self._save()
        return rendered

    def _upkeep(self, now: int) -> None:
        self.recorder.heartbeat(time.monotonic_ns())
        self.say_alive()
        self.views.tick(now)
        self.observer.facts.save(time.monotonic_ns(), time.time_ns())
        if time.monotonic_ns() >= self._save_due_at:
            self._save()

    def _save(self) -> None:
        """Keep what was derived; when that takes long (thousands of live sequences) upkeep does it less often."""
        begun_at = time.monotonic_ns()
        self.save()
        ended_at = time.monotonic_ns()
        self._save_due_at = ended_at + SAVE_PAUSE * (ended_at - begun_at)

    async def _tell(self) -> None:
        """Tell whoever listens how it is, twice a second, and which steps have ended since."""
        hub = self.context.hub
        while True:
            await asyncio.sleep(EVENT_SECONDS)
            steps = self._new_steps.take()
            if hub.clients:
                self._num_events += 1
                hub.publish("state", self._num_events, run_view(self.context))
                if steps:
                    content = {"engines": steps, "num_skipped": self._new_steps.num_skipped}
                    hub.publish("steps", self._num_events, content)
