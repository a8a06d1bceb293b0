"""DeviceReader: figures of the host's GPUs once a second, read in a thread that may hang without hurting."""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from vllm_obs.telemetry.device_nvml import DeviceReading, open_nvml

READ_SECONDS = 1.0
STALE_SECONDS = 5.0
"""Figures older than this are not shown as those of now: the driver hangs."""
CLOSE_SECONDS = 0.5
NS = 1e9

_logger = logging.getLogger(__name__)


class DeviceDriver(Protocol):
    """Who is asked; any call may hang."""

    def begin(self) -> bool:
        """Whether there is a driver."""

    def read(self) -> list[DeviceReading]:
        """Every device now."""


class Readings(NamedTuple):
    """All devices, and when they were read (monotonic ns)."""

    read_at: int
    devices: list[DeviceReading]


class DeviceReader:
    """Without a driver it starts no thread and knows of no device. `latest` never waits."""

    def __init__(
        self,
        open_driver: Callable[[], DeviceDriver | None] = open_nvml,
        clock: Callable[[], int] = time.monotonic_ns,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self.latest: Readings | None = None
        """The last that was read."""
        self._open_driver = open_driver
        self._clock = clock
        self._read_seconds = read_seconds
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read from now on."""
        driver = self._open_driver()
        if driver is not None:
            self._thread = threading.Thread(target=self._run, args=(driver,), name="device reader", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Read no more; a call that hangs is left to itself."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def age_seconds(self, now: int) -> float | None:
        """How old the figures are; None where there are none."""
        latest = self.latest
        return None if latest is None else max(0, now - latest.read_at) / NS

    def is_stale(self, now: int) -> bool:
        """Whether there are figures, but not of now."""
        age = self.age_seconds(now)
        return age is not None and age > STALE_SECONDS

    def _run(self, driver: DeviceDriver) -> None:
        try:
            if not driver.begin():
                _logger.debug("no figures of devices: the driver does not answer")
                return
            while not self._ending.is_set():
                self.latest = Readings(self._clock(), driver.read())
                self._ending.wait(self._read_seconds)
        except Exception:  # telemetry may fail, serving may not
            _logger.exception("figures of devices are given up")
