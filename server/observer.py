"""The Observer as a child of the root API server: started after the engine, and again when it dies, ended last."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.errors import StartupError, VllmObsError
from vllm_obs.server import observer_pulse
from vllm_obs.server.beat import until_beat
from vllm_obs.server.config import MAX_DETAIL_LEVEL
from vllm_obs.server.polling import wait_until
from vllm_obs.server.profiles import ProfileRequest, read_request
from vllm_obs.telemetry.console import STDOUT
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import ProcessExited

logger = logging.getLogger(__name__)

OBSERVER_MODULE = "vllm_obs.telemetry.observer_main"
TITLE = "Observer"
ALIVE = "ALIVE"
"""The message by which it shows each second that it gets on."""
TELEMETRY = "TELEMETRY"
"""The message by which it passes on an order: detail_level and sample_rate."""
PROFILE = "PROFILE"
"""Likewise: take a profile of that name and kind, for so many seconds and steps at most."""
NICENESS = 10
"""Below serving: on a busy machine telemetry comes a little later, tokens do not. One that is started again is
as dear as serving until it is ready: below it, a second of imports takes ten."""
LEAST_PRIORITY = 19
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""After having lived that long its death is a first one again."""
DRAIN_SECONDS = 3.0
"""A second to drain, and a second and a half for exporters to send what they hold."""
POLL_SECONDS = 0.05

Spawn = Callable[[str, str, dict[str, Any]], Child]


class TelemetryOrder(NamedTuple):
    """How much is to be traced from now on: detail 0 to 3, and the share of requests, 0 to 1."""

    detail_level: int
    sample_rate: float

    @classmethod
    def read(cls, payload: dict[str, Any]) -> "TelemetryOrder":
        """The order in plain values. KeyError, TypeError or ValueError where it is none."""
        return cls(int(payload["detail_level"]), float(payload["sample_rate"]))

    def check(self) -> None:
        """ValueError for an order out of its range."""
        if not 0 <= self.detail_level <= MAX_DETAIL_LEVEL or not 0 <= self.sample_rate <= 1:
            raise ValueError(f"{self} is out of range")


Order = TelemetryOrder | ProfileRequest
TakeOrder = Callable[[Order], None]
"""Obeys an order, or raises ValueError."""


READ_ORDER: dict[str, Callable[[Any], Order]] = {TELEMETRY: TelemetryOrder.read, PROFILE: read_request}
"""What each kind of message orders."""


class Observer(Protocol):
    """What the lifecycle needs of an Observer."""

    def start(self, api_address: str, inspect_port: int, take_order: TakeOrder) -> None:
        """Start it, and keep it running from now on. Call it on the event loop, in the main thread.

        `take_order` is called on the loop with what people order through the inspector.
        """

    async def address(self) -> str | None:
        """The address of its inspector once it has one; None when it was stopped before."""

    async def stop(self, at_once: bool = False) -> None:
        """End it, after it has read what was recorded last unless told otherwise."""


class ObserverChild:
    """One Observer process at a time. Nothing that happens to it reaches the serving of requests."""

    def __init__(
        self,
        configuration: dict[str, Any],
        recorder: Recorder,
        module: str = OBSERVER_MODULE,
        start: Spawn = spawn,
    ) -> None:
        self.num_starts = 0
        self._configuration = configuration
        self._recorder = recorder
        self._module = module
        self._spawn = start
        self._child: Child | None = None
        self._pulse = observer_pulse.pulse_of(str(configuration.get("run_dir", "")))
        self._hang_cause = ""
        self._told = ""
        self._started_at = 0.0
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._is_stopping = False
        self._restart: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self, api_address: str, inspect_port: int, take_order: TakeOrder) -> None:
        """Start it for a server at that address, with its inspector at that port (or a free one)."""
        self._loop = asyncio.get_running_loop()
        self._take_order = take_order
        places = {"api_address": api_address, "inspect_port": inspect_port}
        self._configuration = {**self._configuration, **places}
        self._start()
        self._look()

    def _start(self) -> None:
        self.num_starts += 1
        self._started_at = time.monotonic()
        try:
            child = self._child = self._spawn(self._module, TITLE, self._configuration)
        except (StartupError, OSError) as error:
            logger.warning("the Observer did not start: %s", error)
            self._start_again()
            return
        self._hang_cause = ""
        self._pulse.begin(child.pid)
        if self.num_starts == 1:
            _step_back(child)
        for kind in READ_ORDER:
            child.on_message(kind, partial(self._call_soon, self._ordered, kind))
        child.on_message(READY, lambda payload: self._call_soon(self._became_ready, child, payload))
        child.on_message(ALIVE, lambda payload: self._call_soon(self._gave_sign, child))
        child.on_exit(lambda cause: self._call_soon(self._ended, child, cause))

    def _call_soon(self, act: Callable[..., None], *arguments: Any) -> None:
        """Called by the thread that watches the child."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)

    def _ordered(self, kind: str, payload: Any) -> None:
        """Pass an order on, and let an Observer that is started again know of it where it stays in force."""
        try:
            order = READ_ORDER[kind](payload)
            self._take_order(order)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("the Observer's order cannot be used: %r", error)
            return
        if isinstance(order, TelemetryOrder):
            self._configuration = {**self._configuration, **order._asdict()}

    def _became_ready(self, child: Child, ready: Any) -> None:
        """Its inspector stays where it is now over every restart; who knew another address is told."""
        if child is not self._child:
            return
        self._pulse.sign()
        _step_back(child)
        wanted, port = self._configuration["inspect_port"], ready["inspect_port"]
        if wanted not in (0, port):
            logger.warning("port %d is taken; the inspector has port %d", wanted, port)
        self._configuration = {**self._configuration, "inspect_port": port}
        before, self._told = self._told, _url_of(ready)
        if before not in ("", self._told):
            STDOUT.say(f"Inspector: {self._told}")

    def _gave_sign(self, child: Child) -> None:
        if child is self._child:
            self._pulse.sign()

    def _look(self) -> None:
        """Once a second: kill an Observer that hangs; its end starts another."""
        if self._is_stopping:
            return
        self._next_look = self._loop.call_later(until_beat(observer_pulse.LOOK_SECONDS), self._look)
        child = self._child
        if child is None or self._hang_cause or not self._pulse.look():
            return
        self._hang_cause = f"{TITLE} gave no sign of life for {self._pulse.quiet_seconds:g} s and was killed"
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(child.exit_fd, signal.SIGKILL)

    def _ended(self, child: Child, cause: str) -> None:
        cause = self._hang_cause or cause
        self._pulse.sign(is_ready=False)
        now = time.monotonic_ns()
        self._recorder.record(ProcessExited(TITLE, child.pid, child.exit_code or 0, now, self._is_stopping))
        if self._is_stopping:
            return
        child.stop(0)
        self._child = None
        logger.warning("%s; serving goes on without it, it is started again in %g s", cause, self._next_wait())
        self._start_again()

    def _next_wait(self) -> float:
        return FIRST_WAIT_SECONDS if time.monotonic() - self._started_at > STEADY_SECONDS else self._wait_seconds

    def _start_again(self) -> None:
        wait_seconds = self._next_wait()
        self._wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        if not self._is_stopping:
            self._restart = self._loop.call_later(wait_seconds, self._start)

    async def address(self) -> str | None:
        """Where its inspector listens, once it does; None when the server stops before."""
        while not self._is_stopping:
            ready = self._ready()
            if ready is not None:
                return _url_of(ready)
            await asyncio.sleep(POLL_SECONDS)
        return None

    def _ready(self) -> Any:
        try:
            return None if self._child is None else self._child.message(READY)
        except VllmObsError:
            return None  # it ended: the next one will say it

    async def stop(self, at_once: bool = False) -> None:
        """Order it to end, give it three seconds to read and send what was recorded last, then kill it.

        One that has not come to life yet, and every one `at_once`, is killed.
        """
        self._is_stopping = True
        for timer in (self._restart, self._next_look):
            if timer is not None:
                timer.cancel()
        child = self._child
        if child is None:
            return
        child.ask_to_stop()
        seconds = 0 if at_once or self._ready() is None else DRAIN_SECONDS
        await wait_until(lambda: child.exit_cause is not None, seconds)
        child.stop(0)
        self._child = None


def _step_back(child: Child) -> None:
    """Let serving go first."""
    with contextlib.suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, child.pid, min(own + NICENESS, LEAST_PRIORITY))


def _url_of(ready: Any) -> str:
    host = ready["inspect_host"]
    return f"http://[{host}]:{ready['inspect_port']}" if ":" in host else f"http://{host}:{ready['inspect_port']}"
