"""Watchdog: sees within a round that an engine, API server or launcher stands still, and names who is at fault."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.process_reader import ProcessReader
from vllm_obs.telemetry.process_roles import API_SERVER, LAUNCHER
from vllm_obs.telemetry.records import Record, StallBegun, StallEnded
from vllm_obs.telemetry.stack_archive import StackArchive
from vllm_obs.telemetry.stacks import take_stacks
from vllm_obs.telemetry.watchdog_culprit import Culprit, culprit_of, says, server_culprit, work_in_words
from vllm_obs.telemetry.watchdog_headers import RunHeaders, engines_of
from vllm_obs.telemetry.watchdog_log import StallLog
from vllm_obs.telemetry.watchdog_resume import still_lasts
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook, State, Track, Work, judge, judge_server

UNDER_WAY: tuple[State, ...] = ("alive", "long_step", "stalled")
AT_REST = (Activity.WAITING, Activity.PAUSED)
SUBMITTED = "submitted"
STOPPED = ("T", "t")
"""The kernel's letters for a process that a signal or a debugger has stopped."""
SERVER_STANDS = "An API server takes no requests and sends no tokens"
LAUNCHER_STANDS = "The launcher hands out no new connections, and starts nothing again that dies"
NS = 1e9

OnStall = Callable[[StallBegun, Mapping[str, str]], None]
"""Is told of a stall, with every process's stacks by its title."""

_logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """What a round says of one engine, or of an API server or a launcher (whose engine is empty)."""

    engine: str
    key: str
    track: Track
    says: Callable[[], tuple[str, Culprit]]
    """Asks the kernel, so it is called for those that stand still only."""


class WatchdogSettings(NamedTuple):
    """Which run, and after how many seconds without progress an engine that has work is stalled."""

    run_dir: Path
    stall_seconds: float


@dataclass
class WatchdogPorts:
    """What the watchdog uses of the world: the run's headers, the kernel, and who takes stacks."""

    headers: RunHeaders
    processes: ProcessReader = field(default_factory=ProcessReader)
    take_stacks: Callable[[Path], dict[str, str]] = take_stacks


class Watchdog:
    """Judges engines, API servers and launcher of a live run each time it looks. Used from the event loop.

    `record` is where StallBegun and StallEnded go. A stall is told of once: in the log, to the callbacks, and in
    RUN_DIR/stalls.
    """

    def __init__(
        self,
        observer: Observer,
        settings: WatchdogSettings,
        log: StallLog,
        record: Callable[[Record], None],
        ports: WatchdogPorts | None = None,
    ) -> None:
        self._observer = observer
        self._run_dir = settings.run_dir
        self._limit_ns = int(settings.stall_seconds * NS)
        self._log = log
        self._record = record
        self._ports = ports or WatchdogPorts(RunHeaders(self._run_dir))
        self._archive = StackArchive(self._run_dir)
        self._tracks: dict[str, Track] = {}
        self._stalls: dict[str, StallBegun] = {}
        self._callbacks: list[OnStall] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._has_resumed = False

    def on_stall(self, callback: OnStall) -> None:
        """Call `callback(stall, stacks)` on the event loop for each stall, once its stacks are taken."""
        self._callbacks.append(callback)

    def current(self) -> list[StallBegun]:
        """The stalls that last, oldest first."""
        return sorted(self._stalls.values(), key=lambda stall: stall.stuck_at)

    def looks(self) -> list[ProcessLook]:
        """What the headers of the run's live processes say now."""
        return self._ports.headers.look()

    def states(self) -> dict[str, State]:
        """How each engine (by its label), API server and launcher (by its title) was in the last round."""
        return {key: track.state for key, track in self._tracks.items()}

    def look(self, now: int, is_drained: bool = True) -> None:
        """One round at `now` (monotonic ns). Without a drained Observer only the headers tell who has work."""
        looks = self._ports.headers.look()
        found = self._judge(looks, now, is_drained)
        if is_drained and not self._has_resumed:
            self._has_resumed = True
            found = self._resume(found, looks, now)
        for one in found:
            if one.track.state == "stalled" and one.key not in self._stalls:
                self._begin(one, now)
        stalled = {one.key for one in found if one.track.state == "stalled"}
        for key in self._stalls.keys() - stalled:
            self._end(key, now)
        self._tracks = {one.key: one.track for one in found}

    async def close(self) -> None:
        """Let go of the rings; stacks that are being taken are not waited for."""
        for task in self._telling:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._telling, return_exceptions=True)
        self._ports.headers.close()

    def _resume(self, found: list[_Found], looks: Sequence[ProcessLook], now: int) -> list[_Found]:
        """Go on with the stalls that an earlier Observer found, and record the end of those that are over."""
        for stall in reversed(self._log.lasting()):
            key = stall.engine or stall.role
            if key in self._stalls:
                continue
            self._stalls[key] = stall
            one = next((one for one in found if one.key == key and one.track.state in UNDER_WAY), None)
            if one is None or not still_lasts(stall, looks):
                self._end(key, now)
                continue
            track = one.track._replace(state="stalled", moved_at=stall.stuck_at, still_ns=self._limit_ns)
            found[found.index(one)] = one._replace(track=track)
            if not self._archive.has(stall):
                self._begin_telling(stall)
        return found

    def _judge(self, looks: Sequence[ProcessLook], now: int, is_drained: bool) -> list[_Found]:
        engines = engines_of(looks)
        found = [self._judge_engine(engine, len(engines) == 1, is_drained, now) for engine in engines]
        servers = [look for look in looks if look.role.startswith((API_SERVER, LAUNCHER))]
        return found + [self._judge_server(server, now) for server in servers]

    def _judge_engine(self, look: EngineLook, is_only: bool, is_drained: bool, now: int) -> _Found:
        work = self._work_of(look, is_only, is_drained)
        track = judge(self._tracks.get(look.engine), look, work, now, self._limit_ns)

        def describe() -> tuple[str, Culprit]:
            culprit = culprit_of(look, track, work, self._ports.processes.state_of)
            state = self._observer.state.engines.get(look.engine)
            running, waiting = (state.num_running, state.num_waiting) if state is not None else (0, 0)
            words = work_in_words(running, waiting, self._num_untaken() if is_only else 0)
            return says(f"Engine {look.engine} has {words}, and does not move", culprit), culprit

        return _Found(look.engine, look.engine, track, describe)

    def _work_of(self, look: EngineLook, is_only: bool, is_drained: bool) -> Work:
        """What an engine has to do. Of several nobody knows to which a sequence was sent that none has taken: it
        counts for one that is stopped, which could take none.

        After a loss of records those that are known to be in it may have left it long ago: they count for nothing.
        """
        state = self._observer.state.engines.get(look.engine)
        is_known = state is not None and is_drained and state.builder.roster.is_exact
        num_open = state.num_running + state.num_waiting if state is not None and is_known else 0
        # One that is in a step has work whoever waits for it; to count them all takes a while.
        is_at_rest = is_drained and not num_open and look.core.activity in AT_REST
        if is_at_rest and (is_only or self._is_stopped(look.core)):
            num_open = self._num_untaken()
        return Work(num_open, self._log.submitted_at if is_only else 0)

    def _is_stopped(self, core: ProcessLook) -> bool:
        return not core.host and self._ports.processes.state_of(core.pid) in STOPPED

    def _judge_server(self, look: ProcessLook, now: int) -> _Found:
        track = judge_server(self._tracks.get(look.role), look, now, self._limit_ns)

        def describe() -> tuple[str, Culprit]:
            culprit = server_culprit(look, self._ports.processes.state_of)
            stands = LAUNCHER_STANDS if look.role.startswith(LAUNCHER) else SERVER_STANDS
            return says(stands, culprit), culprit

        return _Found("", look.role, track, describe)

    def _num_untaken(self) -> int:
        """Sequences that were sent and that no engine has recorded taking."""
        ledgers = self._observer.state.sequences.values()
        return sum(ledger.state == SUBMITTED and not ledger.is_partial for ledger in ledgers)

    def _begin(self, one: _Found, now: int) -> None:
        text, culprit = one.says()
        process = culprit.process
        stall = StallBegun(
            engine=one.engine,
            role=process.role,
            pid=process.pid,
            rank=process.rank,
            activity=process.activity.label,
            step=process.step,
            process_state=culprit.process_state,
            says=text,
            stuck_at=one.track.moved_at,
            noticed_at=now,
        )
        self._stalls[one.key] = stall
        self._record(stall)
        _logger.warning("%s It has stood still for %.1f s.", text, (now - stall.stuck_at) / NS)
        self._begin_telling(stall)

    def _begin_telling(self, stall: StallBegun) -> None:
        with contextlib.suppress(RuntimeError):  # without a loop, as in a test, nobody is told
            task = asyncio.get_running_loop().create_task(self._tell(stall), name="tell of a stall")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def _end(self, key: str, now: int) -> None:
        stall = self._stalls.pop(key)
        self._record(StallEnded(stall.engine, stall.role, stall.pid, stall.stuck_at, now))
        whose = f"engine {stall.engine}" if stall.engine else stall.role
        _logger.warning("%s moves again, or has ended, after %.1f s", whose, (now - stall.stuck_at) / NS)

    async def _tell(self, stall: StallBegun) -> None:
        try:
            stacks = await asyncio.to_thread(self._take, stall)
        except Exception:
            _logger.exception("the stacks of a stall could not be taken")
            stacks = {}
        for callback in self._callbacks:
            try:
                callback(stall, stacks)
            except Exception:
                _logger.exception("a stall could not be told of")

    def _take(self, stall: StallBegun) -> dict[str, str]:
        stacks = self._ports.take_stacks(self._run_dir)
        try:
            self._archive.save(stall, stacks)
        except OSError as error:
            _logger.warning("the stacks of a stall could not be written down: %s", error.strerror)
        return stacks
