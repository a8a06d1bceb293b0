"""A client that has closed its sending half: still there to read its reply, or gone?"""

import select
from typing import Any

PROBE_AFTER_SECONDS = 0.3
PROBE_ANSWER_SECONDS = 0.05


class HalfClosed:
    """Sends the client of an `HttpProtocol` something harmless. What resets the connection is gone, and aborted.

    One that is there, but has not sent its body to the end, never will.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def start(self) -> None:
        """Look a moment from now."""
        self._protocol.loop.call_later(PROBE_AFTER_SECONDS, self._probe)

    def _probe(self) -> None:
        protocol, cycle, transport = self._protocol, self._protocol.cycle, self._protocol.transport
        if cycle.response_complete or cycle.disconnected or protocol.pipeline or transport.is_closing():
            return
        state = cycle.scope.get("state", {})
        if cycle.response_started and "probe_frame" in state:
            transport.write(b"%x\r\n%b\r\n" % (len(state["probe_frame"]), state["probe_frame"]))
        elif not cycle.response_started and cycle.scope["http_version"] == "1.1":
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        protocol.loop.call_later(PROBE_ANSWER_SECONDS, self._abort_if_reset)

    def _abort_if_reset(self) -> None:
        """After end of file nobody reads the socket any more: ask it whether the peer has reset it."""
        transport = self._protocol.transport
        if transport.is_closing():
            return
        poller = select.poll()
        poller.register(transport.get_extra_info("socket").fileno(), 0)
        if poller.poll(0):
            transport.abort()
        elif not self._protocol.cycle.response_complete and self._protocol.cycle.more_body:
            self._protocol.refuse_early_end()
