"""ApiServerWatch: kills one of several API servers whose event loop hangs, so that another takes its place."""

from collections.abc import Sequence

from vllm_obs.server.api_server_place import ApiServerPlace
from vllm_obs.telemetry.watchdog_headers import RunHeaders
from vllm_obs.telemetry.watchdog_rule import Track, judge_server

STALLS_A_KILL = 3
"""Times `--stall-timeout`: by then the watchdog has named it and taken its stacks, and debuggers have let go."""
NS = 1e9


class ApiServerWatch:
    """Used on the launcher's event loop, a few times a second; a look is at mapped memory.

    One that is stopped holds the streams of its clients for ever, while the others could serve them. By the rule
    of the watchdog who looks late, because it was stopped itself, blames nobody at once.
    """

    def __init__(self, places: Sequence[ApiServerPlace], headers: RunHeaders, stall_seconds: float) -> None:
        self._places = places
        self._headers = headers
        self._limit_ns = int(STALLS_A_KILL * stall_seconds * NS)
        self._tracks: dict[int, Track] = {}

    def look(self, now: int) -> None:
        """One look at `now` (monotonic ns), which kills who has not gone round for too long."""
        looks = {look.pid: look for look in self._headers.look() if not look.host}
        before, self._tracks = self._tracks, {}
        for place in self._places:
            look = looks.get(place.pid) if place.is_ready else None
            if look is None:
                continue
            track = judge_server(before.get(look.pid), look, now, self._limit_ns)
            if track.state == "stalled":
                place.kill(f"has not gone round its event loop for {(now - track.moved_at) / NS:.0f} s")
            else:
                self._tracks[look.pid] = track

    def close(self) -> None:
        """Let go of the rings."""
        self._headers.close()
