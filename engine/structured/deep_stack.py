"""A call on a stack of its own size, in a thread that lives as long as the call."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread, stack_size
from typing import TypeVar

T = TypeVar("T")

PAGE_BYTES = 4096
_starting = Lock()


def on_stack_of(num_bytes: int, call: Callable[[], T]) -> T:
    """What the call returns or raises. MemoryError where there is no room for such a stack.

    The thread has the niceness of the one that waits for it; what it used of its stack is given back at its end.
    """
    outcome: Future[T] = Future()
    thread = Thread(target=_settle, args=(outcome, call), name="deep stack")
    with _starting:
        before = stack_size(-(-num_bytes // PAGE_BYTES) * PAGE_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no room for a stack of {num_bytes} bytes") from error
        finally:
            stack_size(before)
    thread.join()  # what compiles spends at most its limits
    return outcome.result()


def _settle(outcome: Future[T], call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # a panic of a compiler written in Rust is no Exception
        outcome.set_exception(error)
