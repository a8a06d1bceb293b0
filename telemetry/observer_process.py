"""The life of an Observer process: its rings, its service, READY to its owner, and a tidy end."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.checkpoint import Checkpoint, Kept, Resumed
from vllm_obs.telemetry.collector import Collector
from vllm_obs.telemetry.flight_recorder import open_recorder
from vllm_obs.telemetry.inspect_server import SOCKET_NAME, InspectServer, ListenError
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_address import remove_address, write_address
from vllm_obs.telemetry.observer_config import ObserverConfig, ObserverConfigError
from vllm_obs.telemetry.observer_pipe import ALIVE, PROFILE, READY, TELEMETRY, ObserverPipe
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.stack_answer import remove_pipes

ROLE = "Observer"
CHECKPOINT_NAME = "observer.checkpoint"
RING_BYTES = 64 * 1024
NUM_OLD_RINGS_KEPT = 3
END_SECONDS = 5.0
"""After the order to end everything is given this long, then the process goes as it is."""

ADDRESS_SECONDS = 2.0
"""Between two attempts to say in a file where the inspector is."""

_logger = logging.getLogger(__name__)


async def run_observer(config: ObserverConfig, pipe: ObserverPipe, started_at: int, imported_at: int) -> None:
    """Observe until the owner orders the end or is gone. ObserverConfigError for an address that is none here."""
    recorder = _open_ring(config.run_dir)
    recorder.record(
        ProcessStarted(ROLE, os.getpid(), started_at, time.time_ns() - time.monotonic_ns() + started_at)
    )
    recorder.record(ProcessPhase(ROLE, "start process", pipe.envelope.spawned_at, started_at))
    recorder.record(ProcessPhase(ROLE, "imports", started_at, imported_at))
    memory = MemorySamples(ROLE, recorder)
    memory.added("imports", "libraries")
    service = open_service(config)
    service.recorder = recorder
    service.say_alive = lambda: pipe.say(ALIVE)
    service.control.say = lambda order: pipe.say(TELEMETRY, order)
    service.profiles.say = lambda order: pipe.say(PROFILE, order)
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.call_soon_threadsafe(_end, service)

    pipe.watch(on_end)
    server = await _listening(service)
    memory.placed("views and listeners", {})
    ready_at = time.monotonic_ns()
    recorder.record(ProcessPhase(ROLE, "views and listeners", imported_at, ready_at))
    recorder.record(ProcessReady(ROLE, os.getpid(), ready_at))
    recorder.doing(Activity.SERVING)
    telling = asyncio.create_task(_tell_address(config, server.address), name="inspector's address")
    # One turn of the loop: where there is room it is written before anybody hears that this is ready.
    await asyncio.sleep(0)
    pipe.say(READY, {"inspect_host": server.host, "inspect_port": server.port})
    service.collect = Collector(time.monotonic_ns()).tick
    try:
        await service.run()
        if service.filer is not None:
            service.filer.finish(is_owner_gone=pipe.is_owner_gone)
    finally:
        recorder.doing(Activity.STOPPING)
        telling.cancel()
        remove_address(config.run_dir)
        # Side by side: the owner waits for three seconds in all.
        await asyncio.gather(server.stop(), service.close())
        (config.run_dir / SOCKET_NAME).unlink(missing_ok=True)
        if pipe.is_owner_gone:
            remove_pipes(config.run_dir)
        recorder.close()


async def _tell_address(config: ObserverConfig, address: str) -> None:
    """Write down where the inspector is; as often as it takes where the disk is full."""
    num_failures = 0
    while True:
        try:
            write_address(config.run_dir, address, config.api_address)
        except OSError as error:
            num_failures += 1
            if num_failures == 1:
                _logger.warning("the inspector's address cannot be written down yet: %s", error.strerror)
            await asyncio.sleep(ADDRESS_SECONDS)
        else:
            return


async def _listening(service: ObserverService) -> InspectServer:
    try:
        return await service.start()
    except ListenError as error:
        raise ObserverConfigError(str(error)) from None


def open_service(config: ObserverConfig, clock: Callable[[], int] = time.monotonic_ns) -> ObserverService:
    """A service over the run's rings that goes on from the last checkpoint, or afresh where there is none to use.

    If any part of a checkpoint cannot be used none is: all that the rings still hold is read again, which tells
    more than parts that do not belong together.
    """
    service = _new_service(config, clock)
    checkpoint = _checkpoint_of(service)
    resumed = checkpoint.load()
    if resumed is not None and resumed.lost_parts:
        service.views.close(time.monotonic_ns())
        service, resumed = _new_service(config, clock), None
        checkpoint = _checkpoint_of(service)
    _connect(service, checkpoint, resumed)
    return service


def _new_service(config: ObserverConfig, clock: Callable[[], int]) -> ObserverService:
    observer = Observer(config.run_dir.name, config.run_dir, clock, wall_offset(config.run_dir))
    return ObserverService(observer, config, root_pid=os.getppid(), variables=os.environ)


def _checkpoint_of(service: ObserverService) -> Checkpoint:
    observer = service.observer
    parts: dict[str, Kept] = {
        "run": observer.state,
        "metrics": service.views.metrics,
        "cost": observer.cost,
        "economics": service.views.economics,
        "slo": service.views.slo,
        "floors": service.views.floors,
        "utilisation": service.views.utilisation,
        "memory": service.memory,
        "stalls": service.context.stall_log,
        "incidents": service.views.incidents,
    }
    return Checkpoint(service.config.run_dir / CHECKPOINT_NAME, parts)


def _connect(service: ObserverService, checkpoint: Checkpoint, resumed: Resumed | None) -> None:
    tail = RingTail(service.config.run_dir, resumed.cursors if resumed else ())
    service.observer.tail = tail
    saved: dict[int, int] = {}

    def save() -> None:
        cursors = tail.cursors()
        is_saved = checkpoint.save(cursors, time.monotonic_ns())
        service.observer.cost.num_failed_saves = checkpoint.num_failures
        if is_saved:
            saved.clear()
            saved.update((each.generation, each.position) for each in cursors)

    def num_unsaved_bytes() -> int:
        return max((each.position - saved.get(each.generation, 0) for each in tail.cursors()), default=0)

    service.save, service.num_unsaved_bytes = save, num_unsaved_bytes
    if resumed is not None:
        service.observer.cost.resumed_at = time.monotonic_ns()
        service.observer.cost.resumed_from = resumed.saved_at
        _logger.info("going on from the checkpoint of %.1f s ago", (time.monotonic_ns() - resumed.saved_at) / 1e9)


def _open_ring(run_dir: Path) -> ProcessRecorder:
    """The Observer's own ring; of those of Observers that died only the newest are kept."""
    old = sorted(run_dir.glob(f"{ROLE}.*.ring"), key=lambda path: path.stat().st_mtime_ns)
    for path in old[:-NUM_OLD_RINGS_KEPT]:
        path.unlink(missing_ok=True)
    return open_recorder(run_dir / f"{ROLE}.ring", ROLE, RING_BYTES)


def _end(service: ObserverService) -> None:
    service.end()
    # Whatever hangs then, serving has ended and nobody waits for it.
    timer = threading.Timer(END_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def wall_offset(run_dir: Path) -> int:
    """What turns a moment of this run into wall time (ns): the oldest process's clocks, so that it stays."""
    clocks: list[tuple[int, int]] = []
    for path in run_dir.glob("*.ring"):
        try:
            with RingReader(path) as reader:
                header = reader.header()
                if not header.host:
                    clocks.append((header.started_at, header.wall_at))
        except (RingError, OSError):
            continue
    started_at, wall_at = min(clocks, default=(time.monotonic_ns(), time.time_ns()))
    return wall_at - started_at
