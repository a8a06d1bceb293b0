"""ServiceWatch: keeps the service manager true to the server's phase, and shows that loop and engine get on."""

import asyncio
import time
from typing import Protocol

from vllm_obs.server.phase import Phase
from vllm_obs.server.service_notify import ServiceNotify

TICK_SECONDS = 0.25
STALLED_SECONDS = 60.0
"""An engine that stands still for so long counts as hung. Before that its incident is what people need."""


class HasPhase(Protocol):
    """The root of what is served, as ApiServer and Launcher are."""

    @property
    def phase(self) -> Phase:
        """What it is doing."""


class ServiceWatch:
    """Looks at the phase four times a second while a manager listens, and never where none does.

    Signs of life come from the event loop, so that a loop that hangs gives none; neither does a server whose
    engine is dead, or has stood still for `STALLED_SECONDS`.
    """

    def __init__(self, api: HasPhase, service: ServiceNotify) -> None:
        self._api = api
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._phase: Phase | None = None
        self._phase_since = 0.0
        self._is_told_ready = False
        self._next_sign = 0.0
        self._timer: asyncio.TimerHandle | None = None
        if service.is_there:
            self._tick()

    def stop(self) -> None:
        """The server ends: say so, and watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._service.stopping()

    def look(self, now: float) -> None:
        """One look at `now`, in seconds of the monotonic clock."""
        phase = self._api.phase
        if phase is not self._phase:
            self._phase, self._phase_since = phase, now
            self._service.status(phase.value)
            if phase is Phase.DRAINING:
                self._service.stopping()
        if phase is Phase.READY and not self._is_told_ready:
            self._is_told_ready = self._service.ready()
        if self._service.sign_seconds and now >= self._next_sign and self._gets_on(now):
            self._next_sign = now + self._service.sign_seconds
            self._service.alive()

    def _gets_on(self, now: float) -> bool:
        if self._phase is Phase.STALLED:
            return now - self._phase_since < STALLED_SECONDS
        return self._phase is not Phase.DEAD

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self.look(time.monotonic())
