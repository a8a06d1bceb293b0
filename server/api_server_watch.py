"""ApiServerWatch: kills one of several API servers whose event loop hangs, so that another takes its place."""

from collections.abc import Sequence

from vllm_obs.server.api_server_place import ApiServerPlace
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_rule import ProcessLook, Track, judge_server

STALLS_A_KILL = 3
"""Times `--stall-timeout`: by then the watchdog has named it and taken its stacks, and debuggers have let go."""
NS = 1e9


class ApiServerWatch:
    """Used on the launcher's event loop, once a second. Needs neither rings nor Observer.

    The event loop of an API server reports now and then, also when nothing has changed; one that does not is
    stopped or held up, and keeps the streams of its clients for ever, while the others could serve them. By the
    rule of the watchdog who looks late, because it was stopped itself, blames nobody at once.
    """

    def __init__(self, places: Sequence[ApiServerPlace], stall_seconds: float) -> None:
        self._places = places
        self._limit_ns = int(STALLS_A_KILL * stall_seconds * NS)
        self._tracks: dict[int, Track] = {}

    def look(self, now: int) -> None:
        """One look at `now` (monotonic ns), which kills who has not reported for too long."""
        before, self._tracks = self._tracks, {}
        for place in self._places:
            if not place.is_ready:
                continue
            look = ProcessLook(
                place.title, place.pid, -1, place.life, place.num_reports, 0, 0, Activity.SERVING, 0
            )
            track = judge_server(before.get(look.pid), look, now, self._limit_ns)
            if track.state == "stalled":
                place.kill(
                    f"has not answered for {(now - track.moved_at) / NS:.0f} s (stopped, or in one long task)"
                )
            else:
                self._tracks[look.pid] = track
