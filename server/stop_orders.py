"""StopOrders: a launcher's orders in the place of signals: the first asks to drain, the second to stop at once."""

import asyncio

from vllm_obs.server.signals import StopSignals


class StopOrders(StopSignals):
    """Signals mean nothing to a child; what its launcher says does. `over` is set when it is to end."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def install(self) -> None:
        """The launcher's orders are taken anyway."""

    def remove(self) -> None:
        """Nothing was installed."""

    def drain(self) -> None:
        """Let nobody in, and finish."""
        self.first.set()

    def cut_off(self) -> None:
        """Finish now."""
        self.first.set()
        self.second.set()

    def end(self) -> None:
        """Whatever is still open: it is over."""
        if not self.first.is_set():
            self.cut_off()
        self.over.set()
