"""AgentRings: sends what is recorded on this host to host 0, whenever there is a connection."""

import logging
import threading
from pathlib import Path
from typing import Protocol

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.nodes.node_messages import NodeMessage, RingBytes
from vllm_obs.telemetry.ring_chunk import RingChunkError
from vllm_obs.telemetry.ring_shipping import RingShipper

SHIP_SECONDS = 0.1
"""How often is looked for new records."""
MAX_UNSENT = 64
"""While so many messages wait records wait as well: replies go first."""
_JOIN_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class Wire(Protocol):
    """What records are sent over."""

    @property
    def num_unsent(self) -> int:
        """How many messages wait."""

    @property
    def is_offset_known(self) -> bool:
        """Whether host 0 knows how far apart the clocks are."""

    def send(self, message: NodeMessage, body: Buffer = b"") -> None:
        """Send, without waiting."""


class AgentRings:
    """Ships the rings of this host's run directory; between two connections they wait where they are.

    Telemetry may fail: an error ends the shipping until the next connection, and nothing else.
    """

    def __init__(self, run_dir: str) -> None:
        self._shipper = RingShipper(Path(run_dir)) if run_dir else None
        self._thread: threading.Thread | None = None
        self._pausing = threading.Event()

    def ship(self, wire: Wire, positions: bytes) -> None:
        """Send, from another thread, all that host 0 does not have yet by what it says it has."""
        if self._shipper is None:
            return
        try:
            self._shipper.resume(positions)
        except RingChunkError as error:
            _logger.warning("host 0 does not say which records it has, so it gets none: %s", error)
            return
        self._pausing.clear()
        self._thread = threading.Thread(target=self._run, args=(self._shipper, wire), name="rings", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """There is no connection any more. Idempotent."""
        self._pausing.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
            self._thread = None

    def close(self) -> None:
        """Let go of every file."""
        self.pause()
        if self._shipper is not None:
            self._shipper.close()

    def _run(self, shipper: RingShipper, wire: Wire) -> None:
        try:
            self._ship(shipper, wire)
        except Exception:
            _logger.exception("what is recorded here is not sent to host 0 any more")

    def _ship(self, shipper: RingShipper, wire: Wire) -> None:
        number = 0
        while not self._pausing.wait(SHIP_SECONDS):
            while wire.is_offset_known and wire.num_unsent < MAX_UNSENT and (chunk := shipper.next_chunk()):
                number += 1
                wire.send(RingBytes(number), chunk)
