"""ProgressWatch: twice a second, from the ring headers, whether an engine with work makes progress."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from vllm_obs.engine.engine_place import EnginePlace
from vllm_obs.server.beat import until_beat
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.watchdog_headers import RunHeaders, engines_of
from vllm_obs.telemetry.watchdog_rule import Track, Work, judge

LOOK_SECONDS = 0.5
LOOKS_A_NUDGE = 10

logger = logging.getLogger(__name__)

Nudge = Callable[[], Any]


class ProgressWatch:
    """Keeps `ApiServer.is_stalled`, and each `EnginePlace.ailment`, true to what the engines' headers say.

    It needs no Observer.

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
        places = {str(place.client.engine_index): place for place in self._api.engine.client.places}
        before, limit_ns = self._tracks, self._limit_ns
        self._tracks = {
            look.engine: judge(before.get(look.engine), look, _work_of(places[look.engine]), now, limit_ns)
            for look in engines_of(self._headers.look())
            if look.engine in places
        }
        for engine, track in self._tracks.items():
            if track.state == "stalled" and (engine not in before or before[engine].state != "stalled"):
                seconds = (now - track.moved_at) / 1e9
                ready = "not ready" if len(places) == 1 else "no new requests for it"
                logger.warning("engine %s has work and has not moved for %.1f s: %s", engine, seconds, ready)
        for engine, place in places.items():
            place.ailment = self._ailment_of(engine)
        up = [place for place in places.values() if place.is_up]
        is_stalled = bool(up) and all(place.ailment == "stalled" for place in up)
        if self._api.is_stalled and up and not is_stalled:
            logger.warning("the engine moves again: ready")
        self._api.is_stalled = is_stalled
        self._api.show_brokenness()

    def _ailment_of(self, engine: str) -> Literal["", "stalled", "broken"]:
        track = self._tracks.get(engine)
        if track is not None and track.state == "stalled":
            return "stalled"
        return "broken" if self._api.engine.llm.answers.is_broken(int(engine)) else ""

    def _again(self) -> None:
        """One more look; only every other where all is well and nothing is asked of the engines."""
        is_well = not any(place.ailment for place in self._api.engine.client.places)
        seconds = 2 * LOOK_SECONDS if is_well and self._api.is_at_rest else LOOK_SECONDS
        self._timer = self._loop.call_later(until_beat(seconds), self._again)
        try:
            self.look(time.monotonic_ns())
        except Exception:  # a watch that fails must not take the server with it
            logger.exception("the engine's progress could not be looked at")
        self._num_looks += 1
        places = self._api.engine.client.places
        is_alone = any(place.ailment == "stalled" and not place.open_ids for place in places)
        if is_alone and self._num_looks % LOOKS_A_NUDGE == 0:
            self._nudge()


def _work_of(place: EnginePlace) -> Work:
    return Work(len(place.open_ids), place.last_sent_at)
