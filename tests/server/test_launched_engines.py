"""The launcher's engines together: what is left of one that was given up ends, while the others are kept."""

import asyncio

import pytest
from fake_executor import tiny_config
from in_loop import in_loop

from vllm_obs.engine.config import VllmConfig
from vllm_obs.server import launched_engines
from vllm_obs.server.engine_keeper import KeepLimits
from vllm_obs.server.launched_engine import LaunchedBy
from vllm_obs.server.launched_engines import LaunchedEngines
from vllm_obs.telemetry.recorder import NullRecorder


class FakeLaunched:
    """Number 0 is given up at once, the others never are."""

    log: list[str]

    def __init__(self, config: VllmConfig, launched_by: LaunchedBy) -> None:
        self.index = config.engine_index

    async def keep(self) -> str:
        if self.index:
            await asyncio.Event().wait()
        return "its budget is spent"

    async def clear(self) -> None:
        self.log.append(f"clear {self.index}")

    async def revive(self) -> bool:
        self.log.append(f"revive {self.index}")
        await asyncio.Event().wait()
        return True


@in_loop
async def test_what_is_left_of_one_that_was_given_up_ends_before_it_rests() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launched_engines, "LaunchedEngine", FakeLaunched)
        patch.setattr("vllm_obs.server.engine_keeper.REST_SECONDS", 0.0)
        FakeLaunched.log = []
        engines = LaunchedEngines(LaunchedBy(NullRecorder(), lambda news: None, KeepLimits(1, 10.0), 1))
        engines.start(tiny_config(), range(2))
        keeping = asyncio.create_task(engines.keep())
        async with asyncio.timeout(10):
            while len(FakeLaunched.log) < 2:
                await asyncio.sleep(0.005)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert FakeLaunched.log == ["clear 0", "revive 0"]
