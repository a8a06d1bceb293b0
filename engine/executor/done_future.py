"""DoneFuture: the future of a call that ran here and now."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DoneFuture(Future[T]):
    """Holds a result or an error from the start. Nobody can wait for it, so that it has no lock to make.

    For whoever asks for the result itself; `concurrent.futures.wait` does not take it.
    """

    def __init__(self, act: Callable[[], T]) -> None:
        """With what `act` returns or raises."""
        self._outcome: T | None = None
        self._error: Exception | None = None
        try:
            self._outcome = act()
        except Exception as error:  # the caller decides what an error of a step means
            self._error = error

    def __repr__(self) -> str:
        return f"<DoneFuture {self._error or self._outcome!r}>"

    def done(self) -> bool:
        """It is."""
        return True

    def result(self, timeout: float | None = None) -> T:
        """What was returned; what was raised is raised."""
        if self._error is not None:
            raise self._error
        return self._outcome  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What was raised."""
        return self._error

    def add_done_callback(self, fn: Callable[[Future[T]], Any]) -> None:
        """Call it now."""
        fn(self)
