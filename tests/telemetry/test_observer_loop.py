"""Each round drains, looks at what was drained and keeps up, and nothing that a look raises ends the rounds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from vllm_obs.telemetry import observer_loop
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_loop import ObserverLoop


class Drained(Observer):
    """Has been drained, but for the first so many slices."""

    def __init__(self, num_slices: int = 0) -> None:
        super().__init__("run")
        self.num_left = num_slices
        self.num_drained = 0

    def drain_slice(self) -> bool:
        self.num_drained += 1
        self.num_left -= 1
        return self.num_left < 0


@dataclass
class Watched:
    """What a loop called, and when it is to end."""

    until: Callable[["Watched"], bool]
    looks: list[bool] = field(default_factory=list)
    num_upkeeps: int = 0

    def run(self, observer: Observer) -> None:
        def look(now: int, is_drained: bool) -> None:
            self.looks.append(is_drained)
            if self.until(self):
                loop.end()

        def upkeep(now: int) -> None:
            self.num_upkeeps += 1

        def broken(now: int, is_drained: bool) -> None:
            raise RuntimeError("planted")

        async def scenario() -> None:
            async with asyncio.timeout(20):
                await loop.run()

        loop = ObserverLoop(observer, upkeep, [broken, look])
        asyncio.run(scenario())


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_loop, "ROUND_SECONDS", 0.01)


def test_every_round_is_looked_at_once_after_its_drain(caplog: pytest.LogCaptureFixture) -> None:
    observer, watched = Drained(), Watched(until=lambda watched: len(watched.looks) == 3)
    watched.run(observer)
    assert (watched.looks, watched.num_upkeeps) == ([True] * 3, 2)  # at its begin and at its end
    assert observer.num_drained == 3 + 1  # one last drain after the order to end
    assert [record.message for record in caplog.records] == ["a look at what was drained failed"] * 3


def test_a_backlog_is_read_without_pauses_and_looked_at_as_seldom_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_loop, "ROUND_SECONDS", 1000.0)
    watched = Watched(until=lambda watched: watched.looks[-1])
    observer = Drained(num_slices=200)
    watched.run(observer)
    assert watched.looks == [False, True]
    assert observer.num_drained == 202


class Heard:
    """Streams that somebody listens to for so many rounds."""

    def __init__(self, num_rounds: int) -> None:
        self.num_left = num_rounds

    @property
    def is_heard(self) -> bool:
        return self.num_left > 0

    def tell(self) -> None:
        self.num_left -= 1


def run_until_unheard(observer: Drained, streams: Heard, num_later: int = 0) -> None:
    """Run a loop until nobody listens; `num_later` is for how many rounds somebody does who comes in a pause."""
    loop = ObserverLoop(observer, lambda now: None)
    loop.streams = streams

    async def scenario() -> None:
        async with asyncio.timeout(20):
            running = asyncio.create_task(loop.run())
            if num_later:
                while not observer.num_drained:
                    await asyncio.sleep(0.001)
                streams.num_left = num_later
                loop.wake()
            while streams.is_heard:
                await asyncio.sleep(0.001)
            loop.end()
            await running

    asyncio.run(scenario())


def test_who_listens_is_told_in_rounds_of_their_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_loop, "ROUND_SECONDS", 1000.0)
    monkeypatch.setattr(observer_loop, "HEARD_ROUND_SECONDS", 0.001)
    observer = Drained()
    run_until_unheard(observer, Heard(5))
    assert observer.num_drained in (6, 7)  # five that were told, one unheard (or none), one after the order to end


def test_who_begins_to_listen_does_not_wait_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_loop, "ROUND_SECONDS", 1000.0)
    monkeypatch.setattr(observer_loop, "HEARD_ROUND_SECONDS", 0.001)
    run_until_unheard(Drained(), Heard(0), num_later=3)


def test_a_backlog_is_no_reason_to_tell_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_loop, "HEARD_ROUND_SECONDS", 1000.0)
    streams, observer = Heard(5), Drained(num_slices=200)
    loop = ObserverLoop(observer, lambda now: None)
    loop.streams = streams

    async def scenario() -> None:
        async with asyncio.timeout(20):
            running = asyncio.create_task(loop.run())
            while observer.num_drained < 201:
                await asyncio.sleep(0.001)
            loop.end()
            await running

    asyncio.run(scenario())
    assert streams.num_left == 4
