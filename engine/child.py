"""A child process as its owner sees it: started with its configuration on a pipe, watched, and ended in time."""

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vllm_obs.engine.child_pipe import FAILED, STOP, read_message, write_message, write_order
from vllm_obs.engine.child_start import Started, start
from vllm_obs.engine.errors import ConfigError, StartupError

EXIT_OUT_OF_MEMORY = 71
"""The exit code of a process that could not get memory."""
STOP_TIMEOUT_SECONDS = 5.0
KILL_TIMEOUT_SECONDS = 5.0

MAX_ENDS = 64

_logger = logging.getLogger(__name__)


class ChildEnd(NamedTuple):
    """How a child ended: `exit_code` is negative for a signal, `ended_at` monotonic ns of when that was seen."""

    title: str
    pid: int
    exit_code: int
    ended_at: int


_unbidden_ends: deque[ChildEnd] = deque(maxlen=MAX_ENDS)


def unbidden_ends() -> list[ChildEnd]:
    """The last children of this process that ended without having been told to, oldest first."""
    return list(_unbidden_ends)


class Child:
    """A running child: its messages so far, its end, and why it ended.

    One thread watches it. Closing this side's pipe ends the child, so it never outlives its owner.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", title: str, orders_fd: int, status_fd: int) -> None:
        self.title = title
        self.pid = process.pid
        self.exit_fd = os.pidfd_open(process.pid)
        self.exit_cause: str | None = None
        self.was_told = False
        """Whether its end was ordered or brought about by this process."""
        self._process = process
        self._orders_fd = orders_fd
        self._status_fd = status_fd
        self._messages: dict[str, Any] = {}
        self._failure: tuple[str, int] | None = None
        self._exit_callbacks: list[Callable[[str], None]] = []
        self._message_callbacks: dict[str, Callable[[Any], None]] = {}
        self._changed = threading.Condition()
        self._watch = threading.Thread(target=self._run_watch, name=f"watch {title}", daemon=True)
        self._watch.start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode

    def message(self, kind: str) -> Any:
        """The payload of the child's message of that kind, None before it came (and for no payload).

        Raises ConfigError or StartupError with the child's own cause when it ended without saying it.
        """
        with self._changed:
            if kind not in self._messages:
                self._require_life()
            return self._messages.get(kind)

    def require_life(self) -> None:
        """ConfigError or StartupError with the child's own cause when it has ended, whatever it said before."""
        with self._changed:
            self._require_life()

    def _require_life(self) -> None:
        if self.exit_cause is not None:
            raise self._startup_error()

    def wait_for(self, kind: str, timeout_seconds: float) -> Any:
        """As `message`, waiting for it; StartupError when `timeout_seconds` pass first."""
        with self._changed:
            self._changed.wait_for(lambda: kind in self._messages or self.exit_cause is not None, timeout_seconds)
            if kind not in self._messages and self.exit_cause is None:
                raise StartupError(f"{self.title} did not say {kind} within {timeout_seconds:g} s")
        return self.message(kind)

    def _startup_error(self) -> Exception:
        """A ConfigError if the child said so; any other end is a failed start, whatever its exit code."""
        message, code = self._failure or (self.exit_cause or "", StartupError.exit_code)
        return ConfigError(message) if code == ConfigError.exit_code else StartupError(message)

    def on_message(self, kind: str, callback: Callable[[Any], None]) -> None:
        """Call `callback(payload)` for every message of that kind from now on, from the watching thread."""
        with self._changed:
            self._message_callbacks[kind] = callback

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` once when the child ends, from the watching thread (or now, if it has)."""
        with self._changed:
            if self.exit_cause is None:
                self._exit_callbacks.append(callback)
                return
            cause = self.exit_cause
        callback(cause)

    def order(self, kind: str, payload: Any) -> bool:
        """Give the child an order of plain values, small enough for a pipe to take whole (else ValueError).

        Never waits: False when the child has ended, or has left so many orders unread that the pipe is full.
        """
        try:
            write_order(self._orders_fd, kind, payload)
        except OSError:
            return False
        return True

    def ask_to_stop(self) -> None:
        """Order the child to end; it decides how."""
        self.was_told = self.was_told or self.exit_cause is None
        with contextlib.suppress(OSError):
            write_message(self._orders_fd, STOP, None)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the child ended within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.exit_cause is not None, timeout_seconds)

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Order it to end, wait, then SIGKILL. Idempotent; afterwards the child is reaped and its pipes closed."""
        self.ask_to_stop()
        if not self.wait(timeout_seconds):
            self.kill()
        self._close()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.was_told = self.was_told or self.exit_cause is None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)
        self.wait(KILL_TIMEOUT_SECONDS)

    def _close(self) -> None:
        self._watch.join(KILL_TIMEOUT_SECONDS)
        for name in ("_orders_fd", "_status_fd", "exit_fd"):
            if (fd := getattr(self, name)) >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def _run_watch(self) -> None:
        poll = select.poll()
        poll.register(self._status_fd, select.POLLIN)
        poll.register(self.exit_fd, select.POLLIN)
        has_status = True
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._status_fd in ready:
                has_status = self._take_message()
                if not has_status:
                    poll.unregister(self._status_fd)
            elif self.exit_fd in ready:
                break
        self._process.wait()
        self._announce_exit()

    def _take_message(self) -> bool:
        try:
            message = read_message(self._status_fd)
        except (OSError, ValueError):
            return False
        if message is None:
            return False
        kind, payload = message
        with self._changed:
            if kind == FAILED:
                self._failure = _failure_in(payload)
            else:
                self._messages[kind] = payload
            callback = self._message_callbacks.get(kind)
            self._changed.notify_all()
        if callback is not None:
            self._tell(callback, payload)
        return True

    def _tell(self, callback: Callable[[Any], None], news: Any) -> None:
        """This thread must see the child's end, whatever becomes of those it tells."""
        try:
            callback(news)
        except Exception:
            _logger.exception("news of %s could not be taken", self.title)

    def _announce_exit(self) -> None:
        cause = describe_exit(self.title, self._process.returncode)
        if self._failure:
            cause = f"{cause}: {self._failure[0]}"
        if not self.was_told:
            # Before anybody hears of it, so that whoever does can record it.
            end = ChildEnd(self.title, self.pid, self._process.returncode, time.monotonic_ns())
            _unbidden_ends.append(end)
        with self._changed:
            self.exit_cause = cause
            callbacks = self._exit_callbacks
            self._changed.notify_all()
        for callback in callbacks:
            self._tell(callback, cause)


def _failure_in(payload: Any) -> tuple[str, int]:
    """The cause and the exit code that a failing child tells; what is no such thing is told as it is."""
    match payload:
        case [str(cause), int(exit_code)]:
            return cause, exit_code
    return f"{payload!r:.200}", StartupError.exit_code


def describe_exit(title: str, code: int) -> str:
    """How a process ended, in words: by which signal, or with which exit code."""
    if code >= 0:
        return f"{title} exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"{title} was killed by {signal.Signals(-code).name}"
    return f"{title} was killed by signal {-code}"


def spawn(module: str, title: str, configuration: dict[str, Any], pass_fds: Sequence[int] = ()) -> Child:
    """Start `python -m module` with the configuration on an inherited pipe; `pass_fds` keep their numbers.

    The pipe stays open as the death pipe: when this process ends, however, the child reads its end.
    Called from the main thread the child also asks the kernel for a SIGKILL at our death (which the kernel
    ties to the thread that started it).
    """
    return configured(start(module, pass_fds, title), title, configuration)


def configured(started: Started, title: str, configuration: dict[str, Any]) -> Child:
    """The child of a started process, told who it is. Call it from the thread that started the process."""
    child = Child(started.process, title, started.orders_fd, started.status_fd)
    envelope = {
        "title": title,
        "parent_pid": os.getpid(),
        "dies_with_thread": threading.current_thread() is threading.main_thread(),
        "spawned_at": started.started_at,
        "configuration": configuration,
    }
    with contextlib.suppress(BrokenPipeError):
        write_message(started.orders_fd, "CONFIGURATION", envelope)
    os.set_blocking(started.orders_fd, False)  # a child that does not read holds up nobody
    return child
