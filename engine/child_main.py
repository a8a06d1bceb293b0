"""A child process as it sees itself: its configuration, its owner's death, and how it says READY or FAILED."""

import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from setproctitle import setproctitle

from vllm_obs.engine.child import EXIT_OUT_OF_MEMORY
from vllm_obs.engine.child_pipe import FAILED, STOP, read_message, write_message
from vllm_obs.engine.core_files import leave_no_core_files
from vllm_obs.engine.early_orders import EarlyOrders
from vllm_obs.engine.errors import ConfigError, StartupError, VllmObsError
from vllm_obs.engine.log import API_TITLE, TEXTLESS, configure_logging

_PR_SET_PDEATHSIG = 1

_logger = logging.getLogger(__name__)


class Owner:
    """The process that started this one: its configuration, its orders, and the pipe that tells of its death."""

    def __init__(self, orders_fd: int, status_fd: int) -> None:
        for fd in (orders_fd, status_fd):
            os.set_inheritable(fd, False)
        self._orders_fd = orders_fd
        self._status_fd = status_fd
        self._on_stop: Callable[[], None] = lambda: os._exit(0)
        self._sending = threading.Lock()
        self._order_callbacks: dict[str, Callable[[Any], None]] = {}
        self._early_orders = EarlyOrders()
        self._ordering = threading.Lock()
        message = read_message(orders_fd)
        if message is None:
            os._exit(1)
        envelope = message[1]
        self.title: str = envelope["title"]
        self.configuration: dict[str, Any] = envelope["configuration"]
        self.spawned_at: int = envelope["spawned_at"]
        if envelope["dies_with_thread"]:
            die_with(envelope["parent_pid"])
        elif os.getppid() != envelope["parent_pid"]:
            os._exit(1)
        threading.Thread(target=self._watch, name="owner watch", daemon=True).start()

    def say(self, kind: str, payload: Any = None) -> None:
        """Send the owner one message of plain values."""
        with self._sending:
            write_message(self._status_fd, kind, payload)

    def try_say(self, kind: str, payload: Any = None) -> bool:
        """As `say`, for a small message, without waiting: whether the owner's pipe had room for it."""
        with self._sending:
            poll = select.poll()
            poll.register(self._status_fd, select.POLLOUT)
            if not any(events & select.POLLOUT for _, events in poll.poll(0)):
                return False
            write_message(self._status_fd, kind, payload)
            return True

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback()` from another thread when the owner orders this process to end.

        Before that an order ends it at once: what is still starting has nothing to finish.
        """
        self._on_stop = callback

    def on_order(self, kind: str, callback: Callable[[Any], None]) -> None:
        """Call `callback(payload)` for every order of that kind, in order, from another thread than the main one.

        Those that came before are told now.
        """
        with self._ordering:
            self._order_callbacks[kind] = callback
            for each in self._early_orders.take():
                self._obey(*each)

    def _obey(self, kind: str, payload: Any) -> None:
        """The thread that does this must see the owner's death, whatever becomes of an order."""
        callback = self._order_callbacks.get(kind)
        if callback is None:
            self._early_orders.keep(kind, payload)
            return
        try:
            callback(payload)
        except Exception:
            _logger.exception("the order %s could not be obeyed", kind)

    def fail(
        self, message: str, exit_code: int = StartupError.exit_code, log_level: int = logging.ERROR
    ) -> NoReturn:
        """End this process at once, from any thread, and leave the owner its cause."""
        _logger.log(log_level, "%s", message)
        try:
            self.say(FAILED, [message, exit_code])
        finally:
            sys.stderr.flush()
            os._exit(exit_code)

    def _watch(self) -> None:
        while True:
            try:
                message = read_message(self._orders_fd)
            except (OSError, ValueError):
                message = None
            if message is None:
                os._exit(1)
            if message[0] == STOP:
                self._on_stop()
                continue
            with self._ordering:
                self._obey(*message)


def die_with(parent_pid: int) -> None:
    """Have the kernel end this process with the thread that started it; end now if the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def guarded(owner: Owner, name: str, body: Callable[[], None]) -> Callable[[], None]:
    """`body` as a thread's target whose death is the death of this process."""

    def run() -> None:
        try:
            body()
        except BaseException as error:
            _logger.exception("the %s thread died", name)
            owner.fail(*cause_of(error, f"the {name} thread died: "), log_level=logging.DEBUG)

    return run


def cause_of(error: BaseException, prefix: str = "") -> tuple[str, int]:
    """One line that names the error, and the exit code that goes with it."""
    if isinstance(error, VllmObsError):
        return f"{prefix}{error}", getattr(error, "exit_code", 70)
    if isinstance(error, MemoryError):
        return f"{prefix}out of memory: {error}".rstrip(": "), EXIT_OUT_OF_MEMORY
    return f"{prefix}{type(error).__name__}: {error}", 70


def _told_cause(error: BaseException, title: str) -> tuple[str, int]:
    """As `cause_of`, without the words of an error that may quote a request."""
    if title.startswith(API_TITLE) and not isinstance(error, TEXTLESS):
        return type(error).__name__, 70
    return cause_of(error)


def run_child(body: Callable[[Owner], None]) -> NoReturn:
    """The main of a child process: set it up, run `body(owner)`, and end with the exit code of what happened."""
    started_at = time.monotonic_ns()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    owner = Owner(int(sys.argv[1]), int(sys.argv[2]))
    setproctitle(f"vllm-obs::{owner.title}")
    configure_logging(owner.title)
    leave_no_core_files()
    _logger.debug("started %.3f s after the spawn", (started_at - owner.spawned_at) / 1e9)
    try:
        body(owner)
    except (ConfigError, StartupError) as error:
        owner.fail(*cause_of(error), log_level=logging.DEBUG)  # a bad start is told once, by the root process
    except VllmObsError as error:
        owner.fail(*cause_of(error))
    except BaseException as error:
        _logger.exception("the main thread died")
        owner.fail(*_told_cause(error, owner.title), log_level=logging.DEBUG)  # all of it has just been said
    sys.stderr.flush()
    os._exit(0)
