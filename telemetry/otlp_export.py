"""SpanExporter: a bounded queue of spans and the thread that brings them to an OTLP receiver."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vllm_obs.telemetry.otlp_encoding import encode_request, encode_scope, encode_span
from vllm_obs.telemetry.otlp_settings import OtlpSettings, number
from vllm_obs.telemetry.otlp_transport import Delivery, Transport
from vllm_obs.telemetry.span import Span
from vllm_obs.telemetry.span_names import SCOPE
from vllm_obs.telemetry.span_resources import SpanResources

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 2 << 20
"""A request is sent when it has grown to this; receivers take 4 MiB by default."""

SHUTDOWN_SECONDS = 2.0

DROP_REASONS = ("queue_full", "unencodable", "refused", "unreachable", "closing")
"""Why a span is dropped: no room, no text that can be written, the receiver's word, its silence, our end."""


@dataclass(frozen=True)
class ExportLimits:
    """How much waits for how long. What cannot be sent is tried again with growing pauses, then given up."""

    max_queue: int = 4096
    max_batch: int = 512
    delay_seconds: float = 3.0
    max_tries: int = 6
    first_pause_seconds: float = 1.0
    max_pause_seconds: float = 30.0

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "ExportLimits":
        """With what OTEL_BSP_* says; OtlpSettingsError for what is no number."""
        max_queue = int(number(variables.get("OTEL_BSP_MAX_QUEUE_SIZE", ""), cls.max_queue))
        max_batch = int(number(variables.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", ""), cls.max_batch))
        delay = number(variables.get("OTEL_BSP_SCHEDULE_DELAY", ""), cls.delay_seconds * 1000) / 1000
        return cls(max(1, max_queue), max(1, min(max_batch, max_queue)), delay)


class _Batch(NamedTuple):
    payload: bytes
    num_spans: int


class SpanExporter:
    """Takes spans from one thread and sends them from its own. `offer` never blocks and nothing here raises.

    `num_exported_spans` were taken by the receiver; `dropped_spans` counts the others by reason, of DROP_REASONS;
    `num_failures` counts tries that failed.
    """

    def __init__(
        self,
        transport: Transport,
        settings: OtlpSettings,
        resources: SpanResources,
        wall_offset: int,
        limits: ExportLimits | None = None,
    ) -> None:
        self._transport = transport
        self._timeout_seconds = settings.timeout_seconds
        self._endpoint = settings.endpoint
        self._resources = resources
        self._wall_offset = wall_offset
        self._limits = limits or ExportLimits()
        self._scope = encode_scope(SCOPE, resources.version)
        self._queue: deque[Span] = deque()
        self._wake = threading.Condition()
        self._closes_at = float("inf")
        self._is_failing = False
        self.num_exported_spans = 0
        self.dropped_spans = dict.fromkeys(DROP_REASONS, 0)
        self.num_failures = 0
        self._thread = threading.Thread(target=self._run, name="otlp-spans", daemon=True)
        self._thread.start()

    @property
    def num_dropped_spans(self) -> int:
        """Spans that were dropped, for whatever reason."""
        return sum(self.dropped_spans.values())

    @property
    def num_queued_spans(self) -> int:
        """Spans that wait to be sent."""
        return len(self._queue)

    def offer(self, span: Span) -> bool:
        """Take a span to send; False when the queue is full or closed."""
        queue = self._queue
        if len(queue) >= self._limits.max_queue or self._is_closing:
            self._drop("closing" if self._is_closing else "queue_full", 1)
            return False
        # Without the lock, which would be taken for each span: meanwhile the thread only takes away.
        queue.append(span)
        if len(queue) in (1, self._limits.max_batch):
            with self._wake:
                self._wake.notify()
        return True

    def close(self, timeout_seconds: float = SHUTDOWN_SECONDS) -> None:
        """Send what there is, and be gone when the time is up; what has not been sent then is dropped."""
        with self._wake:
            if self._is_closing:
                return
            self._closes_at = time.monotonic() + timeout_seconds
            self._wake.notify()
        self._thread.join(timeout_seconds)
        self._transport.close()
        if self._thread.is_alive():
            # Closing the channel ends a call; a name lookup would not end, but the thread is a daemon.
            self._thread.join(0.2)

    @property
    def _is_closing(self) -> bool:
        return self._closes_at != float("inf")

    def _run(self) -> None:
        while self._await_spans():
            batch = self._next_batch()
            try:
                self._send_batch(batch)
            except Exception:
                # Telemetry may fail; the thread goes on.
                self._drop("unreachable", batch.num_spans)
                logger.exception("a batch of spans was dropped")
        self._drop("closing", len(self._queue))
        self._queue.clear()

    def _drop(self, reason: str, num_spans: int) -> None:
        with self._wake:
            self.dropped_spans[reason] += num_spans

    def _await_spans(self) -> bool:
        """Wait until a batch is worth sending; False when it is time to go."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._is_closing)
            if not self._is_closing:
                is_worth_it = lambda: len(self._queue) >= self._limits.max_batch or self._is_closing  # noqa: E731
                self._wake.wait_for(is_worth_it, self._limits.delay_seconds)
        return bool(self._queue) and time.monotonic() < self._closes_at

    def _next_batch(self) -> _Batch:
        """Encode spans up to the limits, grouped by the process that did the work."""
        groups: dict[bytes, list[bytes]] = {}
        num_spans = num_bytes = 0
        resource, process = b"", None
        while self._queue and num_spans < self._limits.max_batch and num_bytes < MAX_REQUEST_BYTES:
            span = self._queue.popleft()
            num_spans += 1
            try:
                if span.process is not process:
                    resource, process = self._resources.encoded(span.process), span.process
                encoded = encode_span(span, self._wall_offset)
            except Exception as error:
                self._drop("unencodable", 1)
                logger.debug("span %s cannot be encoded: %s", span.name, error)
                continue
            groups.setdefault(resource, []).append(encoded)
            num_bytes += len(encoded)
        return _Batch(encode_request(groups, self._scope), sum(map(len, groups.values())))

    def _send_batch(self, batch: _Batch) -> None:
        """Send with growing pauses between tries, until it is taken, refused, given up or time to go."""
        for tries in range(1, self._limits.max_tries + 1):
            seconds = min(self._timeout_seconds, self._closes_at - time.monotonic())
            if seconds <= 0:
                break
            delivery = self._transport.send(batch.payload, seconds)
            if not delivery.reason:
                self._taken(batch, delivery)
                return
            self._failed(delivery)
            if not delivery.can_retry:
                self._drop("refused", batch.num_spans)
                return
            if not self._pause(tries, delivery):
                break
        self._drop("unreachable", batch.num_spans)

    def _taken(self, batch: _Batch, delivery: Delivery) -> None:
        num_rejected = min(delivery.num_rejected, batch.num_spans)
        self.num_exported_spans += batch.num_spans - num_rejected
        self._drop("refused", num_rejected)
        if self._is_failing:
            self._is_failing = False
            logger.info("spans reach %s again", self._endpoint)

    def _failed(self, delivery: Delivery) -> None:
        self.num_failures += 1
        if not self._is_failing:
            self._is_failing = True
            logger.warning("spans do not reach %s: %s (said once)", self._endpoint, delivery.reason)

    def _pause(self, tries: int, delivery: Delivery) -> bool:
        """Wait before the next try; False when it is time to go, with no further one."""
        limits = self._limits
        seconds = min(limits.first_pause_seconds * 2 ** (tries - 1), limits.max_pause_seconds)
        with self._wake:
            return not self._wake.wait_for(lambda: self._is_closing, max(seconds, delivery.retry_after_seconds))
