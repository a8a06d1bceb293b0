"""AwaitedCalls: calls to ranks that are far away, which run in order and only when an answer is waited for."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class AwaitedCalls:
    """What an executor whose steps take their time returns: futures that are not done when they are made."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[[], Any], _Awaited]] = deque()

    def call(self, act: Callable[[], Any]) -> "Future[Any]":
        """`act` runs after all that were called before, when its result or a later one's is asked for."""
        future = _Awaited(self)
        self._calls.append((act, future))
        return future

    def run_to(self, future: "Future[Any]") -> None:
        """Run the calls up to that one."""
        while not future.done():
            act, each = self._calls.popleft()
            try:
                each.set_result(act())
            except Exception as error:
                each.set_exception(error)


class _Awaited(Future[Any]):
    def __init__(self, calls: AwaitedCalls) -> None:
        super().__init__()
        self._awaited = calls

    def result(self, timeout: float | None = None) -> Any:
        self._awaited.run_to(self)
        return super().result(timeout)
