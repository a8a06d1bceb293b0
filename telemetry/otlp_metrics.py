"""MetricsExporter: sends a few cumulative histograms over OTLP every now and then."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from vllm_obs.telemetry.otlp_encoding import Histogram, encode_histogram, encode_request, encode_scope
from vllm_obs.telemetry.otlp_settings import OtlpSettings, number
from vllm_obs.telemetry.otlp_transport import Delivery, Transport
from vllm_obs.telemetry.span import Process
from vllm_obs.telemetry.span_names import SCOPE
from vllm_obs.telemetry.span_resources import SpanResources

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_SECONDS = 60.0
SHUTDOWN_SECONDS = 1.0

NOBODY = Process("", 0)
"""The service as a whole: its histograms are those of all its processes."""

Collect = Callable[[], Iterable[Histogram]]


def interval_seconds(variables: Mapping[str, str]) -> float:
    """OTEL_METRIC_EXPORT_INTERVAL, which is in milliseconds."""
    return number(variables.get("OTEL_METRIC_EXPORT_INTERVAL", ""), DEFAULT_INTERVAL_SECONDS * 1000) / 1000


class MetricsExporter:
    """Collects in the caller's thread (`tick`), sends from its own; one request waits at most.

    A request that is not taken is not sent again: the next has all that was in it. Stops by itself when the
    receiver says that it takes no metrics. `num_failures` counts requests that were not taken.
    """

    def __init__(
        self,
        transport: Transport,
        settings: OtlpSettings,
        resources: SpanResources,
        wall_offset: int,
        interval: float = DEFAULT_INTERVAL_SECONDS,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._resource = resources.encoded(NOBODY)
        self._scope = encode_scope(SCOPE, resources.version)
        self._wall_offset = wall_offset
        self._interval_ns = int(interval * 1e9)
        self._begun_at = self._due_at = 0
        self._waiting: bytes | None = None
        self._wake = threading.Condition()
        self._is_over = False
        self._closes_at = float("inf")
        self.num_failures = 0
        self.num_exports = 0
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def tick(self, now: int, collect: Collect, is_last: bool = False) -> None:
        """Collect and hand over if it is time (monotonic ns); the first call says from when on is counted."""
        if not self._begun_at:
            self._begun_at, self._due_at = now, now + self._interval_ns
        if self._is_over or (now < self._due_at and not is_last):
            return
        self._due_at = now + self._interval_ns
        moments = (self._begun_at + self._wall_offset, now + self._wall_offset)
        metrics = [encode_histogram(histogram, *moments) for histogram in collect() if histogram.points]
        if metrics:
            with self._wake:
                self._waiting = encode_request({self._resource: metrics}, self._scope)
                self._wake.notify()

    def close(self, timeout_seconds: float = SHUTDOWN_SECONDS) -> None:
        """Send what waits, and be gone when the time is up."""
        with self._wake:
            self._closes_at = time.monotonic() + timeout_seconds
            self._wake.notify()
        self._thread.join(timeout_seconds)
        self._transport.close()
        self._thread.join(0.2)

    def _run(self) -> None:
        while (payload := self._next()) is not None:
            seconds = min(self._settings.timeout_seconds, self._closes_at - time.monotonic())
            if seconds > 0:
                self._note(self._transport.send(payload, seconds))

    def _next(self) -> bytes | None:
        """The next request, or None when it is time to go."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._waiting is not None or self._is_over or self._closes_at != float("inf")
            )
            payload, self._waiting = self._waiting, None
        return None if self._is_over else payload

    def _note(self, delivery: Delivery) -> None:
        if not delivery.reason:
            self.num_exports += 1
        elif delivery.is_unsupported:
            # A receiver of traces alone was named by the flag for traces: no failure.
            self._is_over = True
            logger.info("%s takes no metrics: %s", self._settings.endpoint, delivery.reason)
        else:
            if not self.num_failures:
                logger.warning("metrics do not reach %s: %s (said once)", self._settings.endpoint, delivery.reason)
            self.num_failures += 1
