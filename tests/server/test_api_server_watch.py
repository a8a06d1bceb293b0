"""Of several API servers one that hangs is killed, once the watchdog has had its time; whoever moves is not."""

from typing import Any

import pytest

from vllm_obs.server.api_server_watch import ApiServerWatch

S = 10**9


class FakePlace:
    """Keeps why it was killed."""

    def __init__(self, index: int) -> None:
        self.title, self.pid, self.life = f"APIServer_{index}", 7 + index, 0
        self.is_ready = True
        self.num_reports = 1
        self.killed: list[str] = []

    def kill(self, why: str) -> None:
        self.killed.append(why)


class Watched:
    """A watch over two API servers; the first reports only when it is told to."""

    def __init__(self) -> None:
        self.places: Any = [FakePlace(0), FakePlace(1)]
        self.watch = ApiServerWatch(self.places, 10.0)
        self.now = S

    def look(self, num_seconds: int) -> None:
        """A look each second."""
        for _ in range(num_seconds):
            self.now += S
            self.places[1].num_reports += 1
            self.watch.look(self.now)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_one_that_hangs_is_killed_after_three_times_the_stall_timeout(watched: Watched) -> None:
    watched.look(30)
    assert watched.places[0].killed == []
    watched.look(1)
    assert watched.places[0].killed == ["has not answered for 30 s (stopped, or in one long task)"]
    assert watched.places[1].killed == []


def test_one_that_reports_now_and_then_is_left_alone(watched: Watched) -> None:
    for _ in range(4):
        watched.look(29)
        watched.places[0].num_reports += 1
    assert watched.places[0].killed == []


def test_one_that_is_not_ready_is_left_alone(watched: Watched) -> None:
    watched.places[0].is_ready = False
    watched.look(100)
    assert watched.places[0].killed == []


def test_another_process_in_its_place_has_its_own_time(watched: Watched) -> None:
    watched.look(29)
    watched.places[0].pid, watched.places[0].life = 9, 1
    watched.look(29)
    assert watched.places[0].killed == []


def test_a_watch_that_was_stopped_itself_blames_nobody_at_once(watched: Watched) -> None:
    watched.look(1)
    watched.now += 3600 * S
    watched.look(20)
    assert watched.places[0].killed == []
