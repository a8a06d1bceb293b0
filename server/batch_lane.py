"""Lane: one thread that makes blocking calls for coroutines, in their order."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Lane:
    """Makes the calls one after another. As many wait as there are coroutines that await one.

    Its thread is a daemon: a read from a terminal on which nobody types ends with the process, which does not
    wait for it.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises. A call whose coroutine was cancelled meanwhile is left out, or is over."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((work, answer))
        return await answer

    def close(self, timeout_seconds: float) -> None:
        """End the thread, or leave it alone if it does not end within that time."""
        self._calls.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, answer = call
            if not answer.cancelled():
                _answer(answer, *_outcome(work))


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _answer(answer: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    def settle() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        answer.get_loop().call_soon_threadsafe(settle)
