"""InspectorNotice: tells people where the inspector is, once it is known and it is time."""

import asyncio
from collections.abc import Callable

from vllm_obs.server.observer import Observer
from vllm_obs.telemetry.console import STDOUT


class InspectorNotice:
    """One line, said once: after `allow`, or when the Observer has an address if that is later."""

    def __init__(self, say: Callable[[str], None] = STDOUT.say) -> None:
        self._say = say
        self._address = ""
        self._is_allowed = False

    def follow(self, observer: Observer) -> None:
        """Wait for its address, which nobody else waits for. Call it on the event loop."""
        self._waiting = asyncio.create_task(self._wait(observer), name="inspector's address")

    def allow(self) -> None:
        """What comes before it has been said."""
        self._is_allowed = True
        self._print()

    async def _wait(self, observer: Observer) -> None:
        self._address = await observer.address() or ""
        if self._is_allowed:
            self._print()

    def _print(self) -> None:
        if self._address:
            self._say(f"Inspector: {self._address}")
