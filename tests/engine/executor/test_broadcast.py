"""What executors of several ranks share, over ranks that are not there: calls that cannot be sent, and the end."""

import contextlib
import threading
from dataclasses import replace
from typing import Any

import pytest
from fake_executor import tiny_config

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor import pending_calls
from vllm_obs.engine.executor.broadcast import BroadcastExecutor
from vllm_obs.engine.executor.shm_ring import ShmQueueError
from vllm_obs.telemetry.recorder import NullRecorder


class FakeRanks(BroadcastExecutor):
    """Writes to nobody, and fails at it as `error` says."""

    def __init__(self) -> None:
        config = replace(tiny_config(), parallel=ParallelConfig("mp", 2))
        super().__init__(config, NullRecorder())
        self.error: Exception | None = None

    def _spawn_ranks(self) -> None:
        return

    def _messages(self, kind: str) -> list[Any]:
        return []

    def _write(self, frames: list[Buffer]) -> None:
        if self.error is not None:
            raise self.error

    def _close(self) -> None:
        return


class RacingRanks(FakeRanks):
    """Whoever looks whether it has failed waits a moment for another to look as well."""

    _failed_with: str | None = None
    both = threading.Barrier(2)

    @property
    def _failure(self) -> str | None:
        found = self._failed_with
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(0.3)
        return found

    @_failure.setter
    def _failure(self, cause: str | None) -> None:
        self._failed_with = cause


def test_a_call_that_cannot_be_sent_for_any_cause_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeRanks()
    executor.error = OSError("of somebody else's making")
    with pytest.raises(OSError, match="of somebody else's making"):
        executor.sample_tokens(None).result(0)
    monkeypatch.setattr(pending_calls, "CALL_DEADLINE_SECONDS", 0.0)
    assert executor._calls.overdue() is None
    executor.error = None
    assert not executor.sample_tokens(None).done()


def test_a_queue_that_is_broken_fails_all_calls() -> None:
    executor = FakeRanks()
    before = executor.sample_tokens(None)
    executor.error = ShmQueueError("timeout", "nobody reads", 1)
    for future in (executor.sample_tokens(None), before):
        with pytest.raises(EngineDeadError, match=r"Worker_TP1 takes no plans: .*nobody reads"):
            future.result(0)


def test_of_two_failures_at_once_one_is_told() -> None:
    executor = RacingRanks()
    causes: list[str] = []
    executor._callbacks.append(causes.append)
    threads = [threading.Thread(target=executor._fail, args=(cause,)) for cause in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
    assert len(causes) == 1
