"""The first signal asks for one end, the second for another; work goes on until the first."""

import asyncio
import os
import signal

import pytest
from in_loop import in_loop

from vllm_obs.server.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@in_loop
async def test_each_signal_has_its_meaning_by_its_turn(number: int) -> None:
    signals = StopSignals()
    signals.install()
    try:
        for expected in ((True, False), (True, True)):
            os.kill(os.getpid(), number)
            await asyncio.wait_for((signals.second if all(expected) else signals.first).wait(), 5)
            assert (signals.first.is_set(), signals.second.is_set()) == expected
    finally:
        signals.remove()


@in_loop
async def test_work_that_ends_before_a_signal_has_its_result() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await StopSignals().unless_first(work()) == "done"


@in_loop
async def test_what_work_raises_is_raised() -> None:
    async def work() -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        await StopSignals().unless_first(work())


@in_loop
async def test_the_first_signal_cancels_the_work_and_waits_for_its_end() -> None:
    signals, told = StopSignals(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("ended")

    asyncio.get_running_loop().call_later(0.01, signals.first.set)
    assert await asyncio.wait_for(signals.unless_first(work()), 5) is None
    assert told == ["ended"]
