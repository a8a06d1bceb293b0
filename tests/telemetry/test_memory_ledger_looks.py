"""Looks are made in a thread, one at a time, while the loop goes on; what they found is taken on the loop."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from vllm_obs.telemetry import memory_ledger_looks
from vllm_obs.telemetry.memory_ledger import CHANGE_NS, Errand, MemoryLedger
from vllm_obs.telemetry.memory_ledger_looks import MemoryLooks
from vllm_obs.telemetry.memory_ledger_measure import Measured
from vllm_obs.telemetry.records import MemorySampled

API, CORE = ("APIServer_0", 1), ("EngineCore_DP0", 2)
NOW = 10**15


class SlowLook:
    """A look that lasts until it is let go; counts how many there are at once."""

    def __init__(self) -> None:
        self.errands: list[Errand] = []
        self.most_at_once = 0
        self.may_end = threading.Event()
        self.threads: set[int] = set()
        self._num_now = 0

    def __call__(self, errand: Errand) -> Measured | None:
        self._num_now += 1
        self.most_at_once = max(self.most_at_once, self._num_now)
        self.threads.add(threading.get_ident())
        self.errands.append(errand)
        assert self.may_end.wait(20)
        self._num_now -= 1
        if errand.who == API and len(self.errands) > 9:
            raise RuntimeError("planted")
        return Measured(100, 80, {"heap": 30})

    @property
    def asked(self) -> list[tuple[tuple[str, int], bool]]:
        return [(errand.who, errand.is_glance) for errand in self.errands]


class Scene:
    """Looks over a ledger, what was recorded, and a clock that stands still."""

    def __init__(self) -> None:
        self.look = SlowLook()
        self.ledger = MemoryLedger(self.look, lambda: 0)
        self.recorded: list[MemorySampled] = []
        self.now = NOW
        self.looks = MemoryLooks(self.ledger, self.recorded.append, lambda: self.now)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.002)


def run(scenario: Callable[[Scene], Awaitable[None]]) -> Scene:
    async def whole() -> Scene:
        scene = Scene()
        try:
            await scenario(scene)
        finally:
            scene.look.may_end.set()
            await scene.looks.close()
        return scene

    return asyncio.run(whole())


def test_ticks_and_requests_look_one_at_a_time_beside_the_loop() -> None:
    async def scenario(scene: Scene) -> None:
        for _ in range(5):
            scene.looks.tick([API, CORE])
            await asyncio.sleep(0.002)  # the loop goes on meanwhile
        asking = [asyncio.create_task(scene.looks.refresh([API, CORE])) for _ in range(3)]
        await until(lambda: scene.look.errands)
        assert (scene.recorded, scene.ledger.found(API)) == ([], None)
        scene.look.may_end.set()
        await asyncio.gather(*asking)

    scene = run(scenario)
    assert scene.look.asked == [(API, True), (CORE, False)]
    assert scene.look.most_at_once == 1
    assert threading.get_ident() not in scene.look.threads
    assert scene.recorded == [MemorySampled(*API, "", 100, ["heap"], [30], NOW)]
    assert scene.ledger.looked_at(CORE) == NOW


def test_a_tick_finds_out_that_a_process_has_grown() -> None:
    sizes = {API[1]: 100, CORE[1]: 100}

    async def scenario(scene: Scene) -> None:
        scene.looks = MemoryLooks(scene.ledger, scene.recorded.append, lambda: scene.now, sizes.__getitem__)
        scene.look.may_end.set()
        for num_looks in (1, 2):
            scene.looks.tick([API, CORE])
            await until(lambda num_looks=num_looks: len(scene.recorded) == num_looks)  # type: ignore[misc]
        scene.now += CHANGE_NS
        scene.looks.tick([API, CORE])
        sizes[CORE[1]] += 1 << 30
        scene.looks.tick([API, CORE])
        await until(lambda: len(scene.recorded) == 3)

    assert [sample.role for sample in run(scenario).recorded] == [API[0], CORE[0], CORE[0]]


def test_one_who_asks_is_not_kept_waiting_and_the_look_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_ledger_looks, "WAIT_SECONDS", 0.05)

    async def scenario(scene: Scene) -> None:
        begun_at = time.monotonic()
        await scene.looks.refresh([CORE])
        assert time.monotonic() - begun_at < 10
        assert scene.ledger.found(CORE) is None
        leaving = asyncio.create_task(scene.looks.refresh([CORE]))
        await asyncio.sleep(0.005)
        leaving.cancel()
        scene.look.may_end.set()
        await until(lambda: scene.ledger.found(CORE))

    assert run(scenario).look.most_at_once == 1


def test_a_look_that_fails_is_told_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        scene.look.may_end.set()
        scene.look.errands = [scene.ledger.errand(CORE)] * 9
        await scene.looks.refresh([API, CORE])
        assert (scene.ledger.found(API), scene.ledger.looked_at(CORE)) == (None, NOW)

    run(scenario)
    assert [record.message for record in caplog.records] == ["APIServer_0 (pid 1) could not be looked up"]


def test_nothing_is_begun_without_a_loop_or_after_the_end() -> None:
    scene = Scene()
    scene.looks.tick([API])

    async def after_the_end() -> None:
        await scene.looks.close()
        scene.looks.tick([API])
        await scene.looks.refresh([API])

    asyncio.run(after_the_end())
    assert scene.look.errands == []
