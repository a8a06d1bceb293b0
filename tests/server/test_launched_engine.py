"""A life of the launcher's engine: its end is recorded once, and counts what was open in it alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FACTS
from fake_executor import tiny_config
from in_loop import in_loop

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server import launched_engine
from vllm_obs.server.engine_keeper import Death, KeepLimits
from vllm_obs.server.launched_engine import LaunchedBy, LaunchedEngine, OwnedEngine
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import EngineRestarted

KILLED = "EngineCore_DP1 was killed by SIGKILL"


class FakeProcess:
    """An EngineProcess that loads for ever, unless it fails."""

    pid = 7
    has_left_nothing = True

    def __init__(self, config: VllmConfig, *others: Any) -> None:
        self.config = config
        self.exit_cause: str | None = None
        self.failure: StartupError | None = None
        self.num_recorded = 0

    @property
    def dead_cause(self) -> str | None:
        return self.exit_cause

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """It is told of by the test."""

    def facts(self) -> EngineFacts | None:
        if self.failure is not None:
            self.record_exit()
            raise self.failure
        return None

    def late_error(self, timeout_seconds: float) -> StartupError:
        return StartupError("late")

    def record_exit(self) -> None:
        self.num_recorded += 1

    def close(self, timeout_seconds: float) -> None:
        self.exit_cause = KILLED


@in_loop
async def test_the_end_of_one_that_was_not_ready_in_time_is_recorded_once() -> None:
    process: Any = FakeProcess(tiny_config())
    engine = OwnedEngine(process, lambda engine: None)
    with pytest.raises(StartupError, match="late"):
        await engine.ready(0.0)
    engine.record_end()
    assert process.num_recorded == 0, "it still runs"
    for _ in range(2):
        engine.shutdown(0)
    assert process.num_recorded == 1


@in_loop
async def test_the_end_of_one_that_cannot_start_is_recorded_by_who_waits_for_it() -> None:
    process: Any = FakeProcess(tiny_config())
    engine = OwnedEngine(process, lambda engine: None)
    process.failure, process.exit_cause = StartupError("no memory"), "EngineCore_DP0 exited with code 3"
    engine.record_end()
    with pytest.raises(StartupError, match="no memory"):
        await engine.ready(5.0)
    engine.record_end()
    engine.shutdown(0)
    assert process.num_recorded == 1


@in_loop
async def test_a_death_counts_what_was_open_in_that_engine_alone() -> None:
    recorder = MemoryRecorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launched_engine, "EngineProcess", FakeProcess)
        limits = KeepLimits(1, 10.0)
        launched_by = LaunchedBy(recorder, lambda news: None, limits, 1, num_sequences=lambda index: 10 + index)
        engine = LaunchedEngine(replace(tiny_config(), engine_index=1), launched_by)
    life = engine._current
    life.process.close(0)
    engine._ended(life, KILLED)
    engine.died(Death(KILLED, 5, is_its_own=False), is_replaced=True)
    engine.let_in(life, FACTS, 1.0)
    (restarted,) = recorder.of(EngineRestarted)
    assert (restarted.engine, restarted.num_open) == ("1", 11)
