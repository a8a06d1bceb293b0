"""News of engines are kept until the event loop takes them, in order; the first are waited for."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FACTS

from vllm_obs.engine.errors import StartupError
from vllm_obs.server.engine_news import NewsBox
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, SERVING, STARTING, EngineNews


class FakeOwner:
    """Hands over what a launcher would have said."""

    def on_order(self, kind: str, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def tell(self, *news: EngineNews) -> None:
        for each in news:
            self._callback(each.to_wire())


def news(index: int, generation: int, state: str) -> EngineNews:
    facts = FACTS._replace(phases=[]) if state == SERVING else None
    return EngineNews(index, generation, 100 + generation, state, facts=facts)


@pytest.fixture
def owner() -> FakeOwner:
    return FakeOwner()


@pytest.fixture
def box(owner: FakeOwner) -> NewsBox:
    return NewsBox(owner)  # type: ignore[arg-type]


def test_the_first_lives_are_those_that_are_there(owner: FakeOwner, box: NewsBox) -> None:
    begun, served = news(0, 0, STARTING), news(1, 2, SERVING)
    owner.tell(begun, served)
    assert box.first_lives([0, 1], 5.0) == [begun, served]


def test_a_dead_life_is_waited_out(owner: FakeOwner, box: NewsBox) -> None:
    following = news(0, 1, STARTING)
    owner.tell(news(0, 0, DEAD), news(0, 0, EXPECTED))
    later = threading.Timer(0.05, owner.tell, [following])
    later.start()
    assert box.first_lives([0], 5.0) == [following]
    later.join()


def test_no_life_in_time_is_a_failed_start(box: NewsBox) -> None:
    with pytest.raises(StartupError, match=r"no engine was there within 0\.01 s"):
        box.first_lives([0], 0.01)


def test_what_came_before_the_loop_and_what_comes_later_is_taken_in_order(owner: FakeOwner, box: NewsBox) -> None:
    all_news = [news(0, generation, STARTING) for generation in range(50)]

    async def run() -> list[EngineNews]:
        taken: list[EngineNews] = []
        owner.tell(*all_news[:10])
        teller = threading.Thread(target=owner.tell, args=all_news[10:])
        teller.start()
        box.give_to(taken.append)
        deadline = time.monotonic() + 5
        while len(taken) < len(all_news) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        teller.join()
        return taken

    assert asyncio.run(run()) == all_news
