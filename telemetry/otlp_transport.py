"""Transports: bring one encoded OTLP request to its receiver over gRPC or HTTP, and say how that went."""

import gzip
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from vllm_obs.telemetry.otlp_connection import HttpInTime, HttpsInTime
from vllm_obs.telemetry.otlp_encoding import rejected_items
from vllm_obs.telemetry.otlp_settings import HTTP, OtlpSettings, OtlpSettingsError

MAX_REPLY_BYTES = 1 << 16
MAX_RETRY_AFTER_SECONDS = 60.0
MAX_TOLD_CHARS = 200

_SERVICES = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_RETRYABLE_STATUS = frozenset({408, 429, 502, 503, 504})
_UNSUPPORTED_STATUS = frozenset({404, 405, 415, 501})
_RETRYABLE_CODES = frozenset(
    {
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNAVAILABLE",
        "DATA_LOSS",
    }
)


class Delivery(NamedTuple):
    """How it went: `reason` is empty where the request was taken, of which `num_rejected` items were refused."""

    reason: str = ""
    can_retry: bool = False
    is_unsupported: bool = False
    retry_after_seconds: float = 0.0
    num_rejected: int = 0


class Transport(Protocol):
    """Takes encoded export requests of one signal. Called from one thread; never raises."""

    def send(self, payload: bytes, timeout_seconds: float) -> Delivery:
        """Bring it there, or give up after the timeout."""

    def close(self) -> None:
        """Let go of connections."""


def open_transport(signal: str, settings: OtlpSettings) -> Transport:
    """The transport of `signal` for these settings. Raises OtlpSettingsError for a TLS file that is none."""
    try:
        return HttpTransport(settings) if settings.protocol == HTTP else GrpcTransport(signal, settings)
    except (OSError, ssl.SSLError) as error:
        raise OtlpSettingsError(f"cannot use the TLS files for {settings.endpoint}: {error}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is a failure: headers with keys are not carried elsewhere."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Follow none."""


class HttpTransport:
    """POSTs binary protobuf to a URL; proxies as the environment says."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._url = settings.endpoint
        self._is_gzip = settings.is_gzip
        self._headers = {
            "content-type": "application/x-protobuf",
            "user-agent": "vllm-obs",
            **dict(settings.headers),
        }
        if settings.is_gzip:
            self._headers["content-encoding"] = "gzip"
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), HttpInTime()]
        if settings.is_secure:
            handlers.append(HttpsInTime(_tls_context(settings)))
        self._opener = urllib.request.build_opener(*handlers)

    def send(self, payload: bytes, timeout_seconds: float) -> Delivery:
        """One request on a connection of its own; batches are seconds apart."""
        body = gzip.compress(payload, 1) if self._is_gzip else payload
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=timeout_seconds) as reply:
                return Delivery(num_rejected=rejected_items(reply.read(MAX_REPLY_BYTES)))
        except urllib.error.HTTPError as error:
            with error:
                return _refusal(error.code, error.headers)
        except (OSError, HTTPException, ValueError) as error:
            return Delivery(f"{type(error).__name__}: {_told(error)}", can_retry=True)

    def close(self) -> None:
        """Nothing is kept open."""


def _told(error: Exception) -> str:
    """An error's text for a log line: it may quote up to 64 KiB of whatever the other side sent."""
    text = str(error)[: MAX_TOLD_CHARS + 1]
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(text) <= MAX_TOLD_CHARS else f"{shown[:MAX_TOLD_CHARS]}…"


def _refusal(status: int, headers: Message | Mapping[str, str]) -> Delivery:
    try:
        seconds = float(headers.get("retry-after") or 0)
    except ValueError:
        seconds = 0.0
    return Delivery(
        f"HTTP {status}",
        can_retry=status in _RETRYABLE_STATUS,
        is_unsupported=status in _UNSUPPORTED_STATUS,
        retry_after_seconds=min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS),
    )


def _tls_context(settings: OtlpSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    if settings.certificate_file:
        context.load_cert_chain(settings.certificate_file, settings.key_file or None)
    return context


class GrpcTransport:
    """Calls the collector's service on one channel that is kept open. gRPC is loaded only here."""

    def __init__(self, signal: str, settings: OtlpSettings) -> None:
        import grpc

        self._error = grpc.RpcError
        compression = grpc.Compression.Gzip if settings.is_gzip else grpc.Compression.NoCompression
        if settings.is_secure:
            parts = (settings.ca_file, settings.key_file, settings.certificate_file)
            credentials = grpc.ssl_channel_credentials(
                *(Path(part).read_bytes() if part else None for part in parts)
            )
            self._channel = grpc.secure_channel(settings.endpoint, credentials, compression=compression)
        else:
            self._channel = grpc.insecure_channel(settings.endpoint, compression=compression)
        self._export = self._channel.unary_unary(_SERVICES[signal])
        self._metadata = settings.headers

    def send(self, payload: bytes, timeout_seconds: float) -> Delivery:
        """One call; bytes go in and come out as they are."""
        try:
            reply = self._export(payload, timeout=timeout_seconds, metadata=self._metadata)
        except self._error as error:
            code = error.code().name
            return Delivery(
                f"gRPC {code}", can_retry=code in _RETRYABLE_CODES, is_unsupported=code == "UNIMPLEMENTED"
            )
        except ValueError as error:
            # The channel was closed while the call began.
            return Delivery(str(error))
        return Delivery(num_rejected=rejected_items(reply))

    def close(self) -> None:
        """End the channel, and with it a call in progress."""
        self._channel.close()
