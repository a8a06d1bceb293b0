"""ProgressWatch: twice a second, from the ring headers, whether an engine with work makes progress."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.watchdog_headers import RunHeaders, engines_of
from vllm_obs.telemetry.watchdog_rule import Track, Work, judge

LOOK_SECONDS = 0.5
LOOKS_A_NUDGE = 10

logger = logging.getLogger(__name__)

Nudge = Callable[[], Any]


class ProgressWatch:
    """Keeps `ApiServer.is_stalled` true to what the engines' headers say; needs no Observer.

    Runs on the event loop, as seldom and as cheaply as it can: the headers are mapped memory. `nudge()` sends the
    engine a message that asks for nothing: one that is stalled and has no client left would else have no occasion
    to show that it moves again.
    """

    def __init__(self, api: ApiServer, nudge: Nudge) -> None:
        self._api = api
        self._nudge = nudge
        self._headers = RunHeaders(Path(api.config.run_dir or "/nonexistent"))
        self._limit_ns = int(api.server.stall_timeout * 1e9)
        self._tracks: dict[str, Track] = {}
        self._num_looks = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._again)

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        self._headers.close()

    def look(self, now: int) -> None:
        """One look at `now` (monotonic ns)."""
        engines = engines_of(self._headers.look())
        llm = self._api.engine.llm
        # Nobody here knows to which of several engines a sequence went.
        work = Work(llm.num_in_flight, llm.last_submitted_at) if len(engines) == 1 else Work()
        before, limit_ns = self._tracks, self._limit_ns
        tracks = {look.engine: judge(before.get(look.engine), look, work, now, limit_ns) for look in engines}
        stalled = [engine for engine, track in tracks.items() if track.state == "stalled"]
        for engine in stalled:
            if engine not in before or before[engine].state != "stalled":
                seconds = (now - tracks[engine].moved_at) / 1e9
                logger.warning("engine %s has work and has not moved for %.1f s: not ready", engine, seconds)
        if self._api.is_stalled and not stalled and llm.dead_cause is None:
            logger.warning("the engine moves again: ready")
        self._tracks, self._api.is_stalled = tracks, bool(stalled)
        self._api.show_brokenness()

    def _again(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._again)
        try:
            self.look(time.monotonic_ns())
        except Exception:  # a watch that fails must not take the server with it
            logger.exception("the engine's progress could not be looked at")
        self._num_looks += 1
        is_alone = self._api.is_stalled and not self._api.engine.llm.num_in_flight
        if is_alone and self._num_looks % LOOKS_A_NUDGE == 0:
            self._nudge()
