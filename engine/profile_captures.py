"""ProcessCaptures: one process's (or rank's) part in a profile, from the order to the record of its end."""

import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from vllm_obs.engine.errors import RequestError, VllmObsError
from vllm_obs.engine.profile_order import CaptureEnd, ProfileOrder
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded

logger = logging.getLogger(__name__)


class CaptureSite(NamedTuple):
    """Who captures: what its files are called after. `rank` is -1 for a process that is no worker."""

    role: str
    pid: int
    rank: int = -1


class Capture(Protocol):
    """One process's part of a profile. It ends by itself at its bounds; writing is off the process's loop."""

    @property
    def end(self) -> CaptureEnd | None:
        """What became of it, once it is over and its files are written."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """Capture no longer; returns at once, and what was captured is written. Idempotent."""


MakeCapture = Callable[[ProfileOrder, CaptureSite], Capture]


class ProcessCaptures:
    """At most one capture at a time, of the kinds this process knows. Used from the process's main loop only.

    The loop calls `collect` every now and then while `is_under_way`: only the loop records.
    """

    def __init__(self, site: CaptureSite, recorder: Recorder, kinds: Mapping[str, MakeCapture]) -> None:
        self._site = site
        self._recorder = recorder
        self._kinds = kinds
        self._order: ProfileOrder | None = None
        self._capture: Capture | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether there is a capture whose end has not been recorded."""
        return self._capture is not None

    def obey(self, order: ProfileOrder | None, is_look: bool = False) -> bool:
        """`start` an order; without one `stop`, or (`is_look`) only look. Whether a capture is under way.

        A capture that cannot begin is no failure of the process; its end has been recorded then.
        """
        try:
            if order is not None:
                self.start(order)
            elif not is_look:
                self.stop()
        except VllmObsError as error:
            logger.warning("the profile cannot be taken: %s", error)
        except Exception:
            logger.exception("the profile cannot be taken")
        self.collect()
        return self.is_under_way

    def start(self, order: ProfileOrder) -> None:
        """Begin, where this process takes part in profiles of that kind. RequestError when one is under way."""
        self.collect()
        if self._order is not None:
            raise RequestError(f"the profile {self._order.profile} is still under way", reason="conflict")
        make = self._kinds.get(order.kind)
        if make is None:
            return
        try:
            # One that cannot be made never began: whoever ordered it is told so.
            _require_directory(order.directory)
            capture = make(order, self._site)
            self._record_begin(order)
            capture.start()
        except Exception as error:
            now = time.monotonic_ns()
            words = str(error) if isinstance(error, VllmObsError) else f"{type(error).__name__} when it began"
            self._record_end(order, CaptureEnd(0, 0, now, now, [], words))
            raise
        self._order, self._capture = order, capture

    def stop(self) -> None:
        """End the capture, if there is one; its files are written meanwhile."""
        if self._capture is not None:
            self._capture.stop()

    def collect(self) -> None:
        """Record the end of a capture that is over and written."""
        if self._capture is None or self._order is None or (end := self._capture.end) is None:
            return
        self._record_end(self._order, end)
        self._order = self._capture = None

    def _record_begin(self, order: ProfileOrder) -> None:
        bounds, now = (order.steps, order.seconds), time.monotonic_ns()
        self._recorder.record(ProfileBegun(order.profile, order.kind, *self._site, *bounds, now))

    def _record_end(self, order: ProfileOrder, end: CaptureEnd) -> None:
        role, pid, rank = self._site
        self._recorder.record(
            ProfileEnded(
                profile=order.profile,
                kind=order.kind,
                role=role,
                pid=pid,
                rank=rank,
                num_steps=end.num_steps,
                num_samples=end.num_samples,
                ended_at=end.ended_at,
                written_at=end.written_at,
                files=end.files,
                error=end.error,
            )
        )


def _require_directory(directory: str) -> None:
    """RequestError on a host that does not have it: what ranks on other hosts would write nobody would find."""
    if not Path(directory).is_dir():
        where = socket.gethostname()
        raise RequestError(f"{where} has no {directory}: a profile has the ranks of the server's host only")
