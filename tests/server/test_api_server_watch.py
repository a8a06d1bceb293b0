"""Of several API servers one that hangs is killed, once the watchdog has had its time; whoever moves is not."""

from typing import Any

import pytest
from fake_headers import FakeHeaders

from vllm_obs.server.api_server_watch import ApiServerWatch
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_rule import ProcessLook

S = 10**9


class FakePlace:
    """Keeps why it was killed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_ready = True
        self.killed: list[str] = []

    def kill(self, why: str) -> None:
        self.killed.append(why)


class Watched:
    """A watch over two API servers; the first beats only when it is told to."""

    def __init__(self) -> None:
        self.places: Any = [FakePlace(7), FakePlace(8)]
        self.headers = FakeHeaders()
        self.watch = ApiServerWatch(self.places, self.headers, 10.0)
        self.now = S
        self.beat_at = S
        self.activity = Activity.SERVING

    def look(self, num_seconds: int) -> None:
        """A look each second."""
        for _ in range(num_seconds):
            self.now += S
            first = ProcessLook("APIServer_0", 7, -1, 1, self.beat_at, 0, 0, self.activity, 0)
            other = ProcessLook("APIServer_1", 8, -1, 2, self.now, 0, 0, Activity.SERVING, 0)
            self.headers.looks = [first, other]
            self.watch.look(self.now)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_one_that_hangs_is_killed_after_three_times_the_stall_timeout(watched: Watched) -> None:
    watched.look(30)
    assert watched.places[0].killed == []
    watched.look(1)
    assert watched.places[0].killed == ["has not gone round its event loop for 30 s"]
    assert watched.places[1].killed == []


def test_one_that_goes_round_now_and_then_is_left_alone(watched: Watched) -> None:
    for _ in range(4):
        watched.look(29)
        watched.beat_at = watched.now
    assert watched.places[0].killed == []


def test_one_that_is_not_ready_or_rests_is_left_alone(watched: Watched) -> None:
    watched.places[0].is_ready = False
    watched.look(100)
    watched.places[0].is_ready, watched.activity = True, Activity.STOPPING
    watched.look(100)
    assert watched.places[0].killed == []


def test_a_watch_that_was_stopped_itself_blames_nobody_at_once(watched: Watched) -> None:
    watched.look(1)
    watched.now += 3600 * S
    watched.look(20)
    assert watched.places[0].killed == []
