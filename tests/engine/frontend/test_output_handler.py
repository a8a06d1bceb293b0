"""OutputHandler over a scripted engine: it reads on through every failure but the end of all engines."""

import asyncio
from collections.abc import Awaitable, Callable

from scripted_client import ScriptedAsyncClient
from step_outputs import Row

from vllm_obs.engine.errors import EngineDeadError, EngineLostError
from vllm_obs.engine.frontend.output_handler import READING_FAILED, OutputHandler
from vllm_obs.engine.messages import EngineCoreOutputs


class FakeLosses:
    """Keeps which engines were lost, or fails at it."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.is_broken = False

    def lose(self, loss: EngineLostError) -> None:
        if self.is_broken:
            raise RuntimeError("planted")
        self.causes.append(str(loss))


class Stage:
    """An OutputHandler, and what it did."""

    def __init__(self) -> None:
        self.client = ScriptedAsyncClient()
        self.losses = FakeLosses()
        self.taken: list[str] = []
        self.ends: list[str] = []
        self.handler = OutputHandler(self.client, self.losses, self._take, self.ends.append)  # type: ignore[arg-type]
        self.handler.start()

    def _take(self, outputs: EngineCoreOutputs) -> None:
        if "broken" in outputs.request_ids:
            raise ValueError("planted")
        self.taken += outputs.request_ids

    async def read(self, *request_ids: str) -> None:
        """Return once the outputs of these, which are said now, are taken."""
        for request_id in request_ids:
            self.client.say(Row(request_id, [17]))
        async with asyncio.timeout(5):
            while self.taken[-len(request_ids) :] != list(request_ids):
                await asyncio.sleep(0)


def played(play: Callable[[Stage], Awaitable[None]]) -> Stage:
    async def run() -> Stage:
        stage = Stage()
        try:
            await asyncio.wait_for(play(stage), 20)
        finally:
            await stage.handler.close()
        return stage

    return asyncio.run(run())


def test_outputs_are_taken_in_order_with_room_for_readers_between() -> None:
    async def play(stage: Stage) -> None:
        for request_id in ("a", "b"):
            stage.client.say(Row(request_id, [17]))
        seen = []
        while len(stage.taken) < 2:
            await asyncio.sleep(0)
            seen.append(len(stage.taken))
        assert 1 in seen

    stage = played(play)
    assert (stage.taken, stage.ends) == (["a", "b"], [])


def test_outputs_that_cannot_be_taken_are_the_end_of_their_engine_alone() -> None:
    async def play(stage: Stage) -> None:
        stage.client.say(Row("broken", [17]))
        await stage.read("after")
        assert stage.client.dead_cause == READING_FAILED
        assert stage.handler.end_cause is None

    stage = played(play)
    assert (stage.losses.causes, stage.ends) == ([READING_FAILED], [])


def test_the_loss_of_one_engine_is_told_and_the_others_are_read_on() -> None:
    async def play(stage: Stage) -> None:
        stage.client.fail(EngineLostError("it was killed", 1, []))
        await stage.read("after")

    assert played(play).losses.causes == ["it was killed"]


def test_the_end_of_all_engines_is_told_in_its_own_words() -> None:
    async def play(stage: Stage) -> None:
        stage.client.fail(EngineDeadError("killed by signal 9"))
        assert await asyncio.wait_for(stage.handler.wait_over(), 5) == "killed by signal 9"
        assert stage.handler.end_cause == "killed by signal 9"

    assert played(play).ends == ["killed by signal 9"]


def test_a_loss_that_cannot_be_dealt_with_is_the_end_of_reading() -> None:
    async def play(stage: Stage) -> None:
        stage.losses.is_broken = True
        stage.client.fail(EngineLostError("it was killed", 1, []))
        assert await asyncio.wait_for(stage.handler.wait_over(), 5) == READING_FAILED

    assert played(play).ends == [READING_FAILED]


def test_who_closes_it_is_told_nothing() -> None:
    async def play(stage: Stage) -> None:
        await stage.handler.close()

    stage = played(play)
    assert (stage.ends, stage.handler.end_cause) == ([], None)
