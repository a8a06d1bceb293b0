"""DeviceClock: how long the device was busy with each step, found out without waiting for it."""

from collections import deque

from vllm_obs.engine.worker.device_port import DevicePort, Event

MAX_UNREAD = 4
"""Steps whose end the device has not come to; of more than that the oldest is not timed."""
_NS_PER_MS = 1_000_000


class DeviceClock:
    """Two events a step, read when a later step begins: by then the device has come to them."""

    def __init__(self, port: DevicePort) -> None:
        self._port = port
        self._begun: Event | None = None
        self._unread: deque[tuple[Event, Event]] = deque(maxlen=MAX_UNREAD)

    def begin(self) -> None:
        """A step's work is queued from here on."""
        self._begun = self._port.event()

    def end(self) -> None:
        """All of it is queued."""
        if self._begun is not None and (end := self._port.event()) is not None:
            self._unread.append((self._begun, end))
        self._begun = None

    def take_ns(self) -> int:
        """What the steps took that the device has ended since this was asked last; 0 without a device."""
        num_ns = 0
        while self._unread and self._unread[0][1].query():
            begun, end = self._unread.popleft()
            num_ns += round(begun.elapsed_time(end) * _NS_PER_MS)
        return num_ns
