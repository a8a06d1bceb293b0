"""A keeper puts another engine in a dead one's place, and tells whoever uses it, in this order."""

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from in_loop import in_loop

from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.engine_keeper import Death, EngineKeeper, KeepLimits

SEGFAULT = "EngineCore_DP0 was killed by SIGSEGV"
KILLED = "EngineCore_DP0 was killed by SIGKILL"


class Seat:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.deaths: asyncio.Queue[str] = asyncio.Queue()
        self.is_there = asyncio.Event()

    async def wait_dead(self) -> str:
        return await self.deaths.get()

    def died(self, death: Death, is_replaced: bool) -> None:
        self.log.append((death.cause, death.is_its_own, is_replaced))

    def expect(self, wait_seconds: float) -> None:
        self.log.append(("expect", wait_seconds))

    def let_in(self, engine: FakeEngine, facts: EngineFacts, start_seconds: float) -> None:
        assert start_seconds >= 0
        self.log.append(("let in", engine.generation))
        self.is_there.set()


def keeper_of(first: FakeEngine, *later: FakeEngine, max_restarts: int = 3) -> tuple[EngineKeeper[Any], Seat]:
    first.successors = list(later)
    seat = Seat()
    keeper = EngineKeeper(first, seat, KeepLimits(max_restarts, 10.0))
    keeper.begin(first.facts)
    return keeper, seat


def engine(start_error: Exception | None = None) -> FakeEngine:
    made = FakeEngine(lambda request: [30])
    made.start_error = start_error
    return made


@in_loop
async def test_a_death_is_told_another_is_expected_and_let_in() -> None:
    first = engine()
    keeper, seat = keeper_of(first)
    keeping = asyncio.create_task(keeper.keep())
    for cause in (KILLED, SEGFAULT):
        seat.deaths.put_nowait(cause)
        await asyncio.wait_for(seat.is_there.wait(), 10)
        seat.is_there.clear()
    assert seat.log == [
        (KILLED, False, True),
        ("expect", 0.0),
        ("let in", 1),
        (SEGFAULT, True, True),
        ("expect", 0.5),
        ("let in", 2),
    ]
    assert (first.num_shutdowns, first.was_asked_to_stop.is_set(), keeper.engine.generation) == (1, True, 2)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


@in_loop
async def test_a_spent_budget_is_the_end_until_it_is_revived() -> None:
    keeper, seat = keeper_of(engine(), engine(StartupError("no room")), max_restarts=1)
    seat.deaths.put_nowait(KILLED)
    assert "could not be started again (1 attempts): no room" in await asyncio.wait_for(keeper.keep(), 10)
    assert not seat.is_there.is_set()
    await keeper.clear()
    assert keeper.engine.num_shutdowns == 1
    assert await keeper.revive()
    assert (seat.log[-1], keeper.engine.generation) == (("let in", 2), 2)
    seat.deaths.put_nowait(KILLED)
    keeping = asyncio.create_task(keeper.keep())
    seat.is_there.clear()
    await asyncio.wait_for(seat.is_there.wait(), 10)
    seat.deaths.put_nowait(SEGFAULT)
    assert "the engine died 2 times" in await asyncio.wait_for(keeping, 10)
    assert seat.log[-1] == (SEGFAULT, True, False)


@in_loop
async def test_reviving_may_fail_as_well(caplog: pytest.LogCaptureFixture) -> None:
    keeper, seat = keeper_of(engine(), engine(StartupError("no room")), max_restarts=1)
    assert not await keeper.revive()
    assert "the engine could not be started again" in caplog.text
    assert ("let in", 1) not in seat.log


@in_loop
async def test_a_keeper_that_fails_says_so() -> None:
    keeper, seat = keeper_of(engine())

    async def fail() -> str:
        raise RuntimeError("planted")

    seat.wait_dead = fail  # type: ignore[method-assign]
    assert await keeper.keep() == "the engine died, and what starts another failed"
