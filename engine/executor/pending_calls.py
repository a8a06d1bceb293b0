"""The calls that ranks have not answered yet, and what their replies mean together."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor.commands import (
    CallFailed,
    PeersMissing,
    Profiled,
    Reply,
    Sampled,
    WorkerStepError,
)

CALL_DEADLINE_SECONDS = 240.0
"""How long a rank may take for one call. Below the core's own deadline, since this one can name the rank."""
STRAY_DEADLINE_SECONDS = 10.0
"""How long the output rank may take once another rank said that the call failed."""
MISSING_GRACE_SECONDS = 0.5
"""How much later than the first other ranks may say that they wait too: who waits is not who is waited for."""
_NUM_FAILURES_KEPT = 64


class PendingCalls:
    """Futures by call id. The output rank's reply counts; the ranks must agree on whether a call failed.

    When they do not, their states differ and no later answer can be trusted: `take` and `overdue` then
    return the cause, and the executor must fail. Safe to use from several threads.
    """

    def __init__(self, titles: Sequence[str], output_rank: int = 0) -> None:
        self.titles = titles
        """What the ranks are called."""
        self._output_rank = output_rank
        self._lock = threading.Lock()
        self._futures: dict[int, tuple[Future[Any], float]] = {}
        self._strays: dict[int, tuple[str, float]] = {}
        self._failed_ids: deque[int] = deque(maxlen=_NUM_FAILURES_KEPT)
        self._missing: dict[int, tuple[PeersMissing, float]] = {}
        self._num_calls = 0
        self._dead_cause: str | None = None

    def register(self) -> tuple[int, Future[Any]]:
        """A new call's id and future; the future has failed already when nothing can answer any more."""
        future: Future[Any] = Future()
        with self._lock:
            self._num_calls += 1
            if self._dead_cause is None:
                self._futures[self._num_calls] = (future, time.monotonic())
            else:
                future.set_exception(EngineDeadError(self._dead_cause))
            return self._num_calls, future

    def refuse(self, call_id: int, error: Exception) -> None:
        """Fail one call that could not be sent."""
        with self._lock:
            future, _ = self._futures.pop(call_id, (None, 0.0))
        if future is not None:
            future.set_exception(error)

    def fail_all(self, cause: str) -> None:
        """Fail every call, and those to come, with EngineDeadError."""
        with self._lock:
            self._dead_cause = self._dead_cause or cause
            futures = [future for future, _ in self._futures.values()]
            self._futures.clear()
        for future in futures:
            future.set_exception(EngineDeadError(cause))

    def take(self, rank: int, reply: Reply) -> str | None:
        """Apply a rank's reply; the cause when the ranks disagree."""
        if isinstance(reply, PeersMissing):
            with self._lock:
                self._missing[rank] = (reply, time.monotonic())
            return None
        if rank != self._output_rank:
            return self._take_stray(rank, reply)
        with self._lock:
            future, _ = self._futures.pop(reply.call_id, (None, 0.0))
            stray, _ = self._strays.pop(reply.call_id, ("", 0.0))
            if isinstance(reply, CallFailed):
                self._failed_ids.append(reply.call_id)
        if stray and not isinstance(reply, CallFailed):
            return stray
        if future is not None:
            _settle(future, reply)
        return None

    def _take_stray(self, rank: int, reply: Reply) -> str | None:
        if not isinstance(reply, CallFailed):
            return f"{self.titles[rank]} sent a reply that only the output rank may send"
        cause = f"{self.titles[rank]} failed in a step alone: {reply.error}"
        with self._lock:
            if reply.call_id in self._futures:
                self._strays[reply.call_id] = (cause, time.monotonic())
                return None
            return None if reply.call_id in self._failed_ids else cause

    def overdue(self) -> str | None:
        """The cause when a call has waited for longer than it may."""
        now = time.monotonic()
        with self._lock:
            for cause, since in self._strays.values():
                if now - since > STRAY_DEADLINE_SECONDS:
                    return cause
            if self._missing and now - min(since for _, since in self._missing.values()) > MISSING_GRACE_SECONDS:
                return self._told_missing()
            oldest = min((since for _, since in self._futures.values()), default=now)
        if now - oldest > CALL_DEADLINE_SECONDS:
            title = self.titles[self._output_rank]
            return f"{title} did not answer a call within {CALL_DEADLINE_SECONDS:g} s"
        return None

    def _told_missing(self) -> str:
        """Who did not come: of those that were waited for the ones that do not wait for others themselves."""
        waited_for = {peer for reply, _ in self._missing.values() for peer in reply.peers}
        late = sorted(waited_for - self._missing.keys()) or sorted(waited_for)
        waiter, (reply, _) = next(iter(self._missing.items()))
        names = ", ".join(self.titles[rank] for rank in late)
        return f"{names} did not come to an exchange of a step: {self.titles[waiter]}: {reply.error}"


def _settle(future: Future[Any], reply: Reply) -> None:
    if isinstance(reply, CallFailed):
        future.set_exception(WorkerStepError(reply.error))
    elif isinstance(reply, Profiled):
        future.set_result(reply.is_under_way)
    else:
        future.set_result(reply.output if isinstance(reply, Sampled) else None)
