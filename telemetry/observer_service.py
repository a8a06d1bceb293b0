"""ObserverService: one Observer with its views, its loop and its API, over a run's rings or a recording."""

import asyncio
import time
from collections.abc import Callable, Mapping

from vllm_obs.telemetry.device_metrics import DeviceMetrics
from vllm_obs.telemetry.device_reader import DeviceReader
from vllm_obs.telemetry.incident import IncidentFiler, open_filer
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.inspect_app import build_inspect_app
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_server import InspectServer
from vllm_obs.telemetry.inspect_state import run_view
from vllm_obs.telemetry.inspect_steps import NewSteps
from vllm_obs.telemetry.memory_ledger import MemoryLedger
from vllm_obs.telemetry.memory_ledger_looks import MemoryLooks
from vllm_obs.telemetry.memory_metrics import MemoryMetrics
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_loop import ObserverLoop
from vllm_obs.telemetry.observer_views import ObserverViews
from vllm_obs.telemetry.profile_book import ProfileBook
from vllm_obs.telemetry.profile_control import ProfileControl
from vllm_obs.telemetry.profile_files import ProfileFiles
from vllm_obs.telemetry.recorder import NullRecorder, ProcessRecorder
from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.sample_lead import LeadPorts, SampleLead
from vllm_obs.telemetry.stream_feeds import StreamFeeds
from vllm_obs.telemetry.telemetry_control import TelemetryControl
from vllm_obs.telemetry.verdict_states import state_findings
from vllm_obs.telemetry.verdict_window import Finding
from vllm_obs.telemetry.watchdog import Watchdog, WatchdogSettings
from vllm_obs.telemetry.watchdog_log import StallLog

SAVE_SECONDS = 5.0
"""So long after a checkpoint upkeep makes the next one: until then the rings still hold what came since."""
SAVE_BYTES = 1 << 20
"""Or as soon as so much was read of any ring since, a quarter of the smallest of a serving process's."""
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
        self.collect: Callable[[int], object] = lambda now: None
        """Looks for garbage now and then (monotonic ns)."""
        self.recorder: ProcessRecorder = NullRecorder()
        self._new_steps = NewSteps()
        observer.add_views([self._new_steps])
        self.memory = MemoryLedger()
        observer.add_views([self.memory])
        self._looks = MemoryLooks(self.memory, lambda record: self.recorder.record(record))
        self._memory_metrics = MemoryMetrics(self.views.metrics.store, self.memory)
        self.devices = DeviceReader()
        self._device_metrics = DeviceMetrics(self.views.metrics.store, self.devices)
        self._loop = ObserverLoop(observer, self._upkeep, [self._judge, self._tell])
        stall_log = StallLog()
        observer.add_views([stall_log])
        self.watchdog = self._make_watchdog(stall_log) if observer.is_live else None
        self.filer = self._make_filer() if observer.is_live else None
        self.views.verdict.states = self._states
        self.control = TelemetryControl(observer, config, self._loop.catch_up)
        self.profiles = self._make_profiles()
        self.streams = self._loop.streams = StreamFeeds(observer, self._stalls)
        self.streams.on_heard = self._loop.wake
        observer.add_views([self.streams])
        self.context = self._make_context(stall_log)
        self._num_events = 0
        self._save_due_at = self._save_not_before = 0
        self.num_unsaved_bytes: Callable[[], int] = lambda: 0
        """The most that was read of one ring since the last checkpoint."""

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
        if self.observer.is_live:
            self.devices.start()
        try:
            await self._loop.run()
        finally:
            self.streams.close()
            self.context.hub.close()
            self.observer.facts.save(time.monotonic_ns(), time.time_ns())

    async def close(self) -> None:
        """Send what the exporters still hold (in a thread, with a deadline) and let go of everything."""
        await self.profiles.close()
        await self._looks.close()
        await asyncio.to_thread(self.devices.close)
        await asyncio.to_thread(self.views.close, self.observer.now())
        if self.watchdog is not None:
            await self.watchdog.close()
        self.observer.close()

    def _make_context(self, stall_log: StallLog) -> InspectContext:
        return InspectContext(
            observer=self.observer,
            config=self.config,
            catch_up=self._loop.catch_up,
            render_metrics=self._render,
            quantiles=self.views.metrics.quantiles,
            export_counts=self.views.export_counts,
            control=self.control,
            profiles=self.profiles,
            stall_log=stall_log,
            economics=self.views.economics,
            slo=self.views.slo,
            verdict=self.views.verdict,
            trend=self.views.trend,
            cache_trend=self.views.cache_trend,
            utilisation=self.views.utilisation,
            streams=self.streams,
            watchdog=self.watchdog,
            memory=self.memory,
            refresh_memory=self._refresh_memory,
            devices=self.devices if self.observer.is_live else None,
            incidents=self.views.incidents,
            shelf=IncidentShelf(self.config.run_dir) if self.observer.is_live else None,
        )

    def _make_profiles(self) -> ProfileControl:
        book, observer = ProfileBook(), self.observer
        observer.add_views([book])
        files = ProfileFiles(self.config.run_dir, self.config.profiler_dir)
        control = ProfileControl(book, files, self._loop.catch_up, observer.now)
        ports = LeadPorts(
            lambda record: self.recorder.record(record), self._loop.catch_up, version=self.config.version
        )
        lead = SampleLead(self.config.run_dir, book, ports, bool(self.config.profiler_dir))
        control.alone["samples"], control.parts["samples"] = lead.begin, lead.run
        return control

    def _make_watchdog(self, log: StallLog) -> Watchdog:
        settings = WatchdogSettings(self.config.run_dir, self.config.stall_timeout)
        return Watchdog(self.observer, settings, log, lambda record: self.recorder.record(record))

    def _make_filer(self) -> IncidentFiler:
        filer = open_filer(
            self.observer,
            self.config,
            lambda record: self.recorder.record(record),
            lambda at: self.views.verdict.document("10s", at, is_past=True),
        )
        self.observer.add_views([filer])
        if self.watchdog is not None:
            self.watchdog.on_stall(filer.stall)
        return filer

    def _render(self, accept: str) -> tuple[bytes, str]:
        self._memory_metrics.refresh(self._live())
        self._device_metrics.refresh(self.observer.now())
        rendered = self.views.render(accept)
        # What has been shown is kept, so that no counter goes back if this process is killed now.
        self._save()
        return rendered

    def _upkeep(self, now: int) -> None:
        self.recorder.heartbeat(time.monotonic_ns())
        self.say_alive()
        self.views.tick(now)
        self._look_at_memory()
        if self.filer is not None:
            self.filer.look(now)
        now = time.monotonic_ns()
        self.observer.facts.save(now, time.time_ns())
        self.collect(now)
        if now >= self._save_not_before and (now >= self._save_due_at or self.num_unsaved_bytes() >= SAVE_BYTES):
            self._save()

    def _look_at_memory(self) -> None:
        """One process at a time; what is found is recorded, so that it can be read after the run."""
        if self.observer.is_live:
            self._looks.tick(self._live())

    async def _refresh_memory(self) -> None:
        if self.observer.is_live:
            await self._looks.refresh(self._live())

    def _live(self) -> list[tuple[str, int]]:
        """The processes of the run on this host that have not ended, by role and pid."""
        processes = self.observer.state.processes.all()
        return [(each.role, each.pid) for each in processes if each.state != "exited" and not each.host]

    def _save(self) -> None:
        """Keep what was derived; when that takes long (thousands of live sequences) upkeep does it less often."""
        begun_at = time.monotonic_ns()
        self.save()
        ended_at = time.monotonic_ns()
        self._save_not_before = ended_at + SAVE_PAUSE * (ended_at - begun_at)
        self._save_due_at = ended_at + int(SAVE_SECONDS * 1e9)

    def _stalls(self) -> list[StallBegun]:
        return self.watchdog.current() if self.watchdog is not None else []

    def _states(self, now: int) -> list[Finding]:
        run_dir = self.config.run_dir if self.observer.is_live else None
        return state_findings(self.observer, now, run_dir, self._stalls())

    def _judge(self, now: int, is_drained: bool) -> None:
        if self.watchdog is not None:
            self.watchdog.look(now, is_drained)

    def _tell(self, now: int, is_drained: bool) -> None:
        """Tell whoever listens how it is, and which steps have ended since."""
        hub = self.context.hub
        if not hub.clients:
            self._new_steps.skip()
            return
        steps = self._new_steps.take()
        self._num_events += 1
        hub.publish("state", self._num_events, run_view(self.context))
        if steps:
            content = {"engines": steps, "num_skipped": self._new_steps.num_skipped}
            hub.publish("steps", self._num_events, content)
