"""A real OTLP receiver in this process, over HTTP or gRPC, plain or with TLS, that keeps what it is sent."""

import gzip
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_TRACES = {"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"}


class Answer(NamedTuple):
    """What the receiver says: an HTTP status with headers, or the name of a gRPC code."""

    status: int = 200
    code: str = "OK"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Received(NamedTuple):
    """One span with the process it came from."""

    span: Span
    resource: dict[str, Any]

    @property
    def attributes(self) -> dict[str, Any]:
        return plain_attributes(self.span.attributes)

    @property
    def parent_id(self) -> int:
        return int.from_bytes(self.span.parent_span_id, "big")

    @property
    def span_id(self) -> int:
        return int.from_bytes(self.span.span_id, "big")

    @property
    def trace_id(self) -> int:
        return int.from_bytes(self.span.trace_id, "big")


@dataclass
class OtlpReceiver:
    """Keeps requests in order, with their headers in lower case; answers what `answers` says, then well."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    hold_seconds: float = 0.0
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _change: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request."""
        time.sleep(self.hold_seconds)
        with self._change:
            self.headers.append(headers)
            answer = self.answers.pop(0) if self.answers else Answer()
            if answer.status == 200:
                if path in _TRACES:
                    self.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    self.metrics.append(ExportMetricsServiceRequest.FromString(body))
            self._change.notify_all()
        return answer

    def spans(self) -> list[Received]:
        """All spans received so far."""
        with self._change:
            return [
                Received(span, plain_attributes(resource.resource.attributes))
                for request in self.traces
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def await_that(self, is_so: Callable[["OtlpReceiver"], bool], seconds: float = 20.0) -> None:
        """Wait until it has received what is wanted."""
        with self._change:
            assert self._change.wait_for(lambda: is_so(self), seconds), "the receiver did not get it in time"


def plain(value: AnyValue) -> Any:
    """An attribute's value as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, str(kind))


def plain_attributes(attributes: Iterator[KeyValue] | Any) -> dict[str, Any]:
    """Attributes by name; each name once."""
    pairs = [(pair.key, plain(pair.value)) for pair in attributes]
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


@contextmanager
def http_receiver(tls: ssl.SSLContext | None = None) -> Iterator[OtlpReceiver]:
    """A receiver at `url` (without a path) over HTTP."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            answer = receiver.take(self.path, headers, body)
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'https' if tls else 'http'}://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone, such as a killed Observer, says nothing on anybody's standard error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def grpc_receiver(tls: "TlsFiles | None" = None, port: int = 0) -> Iterator[OtlpReceiver]:
    """A receiver at `url` over gRPC."""
    receiver = OtlpReceiver()

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            headers = {pair.key: pair.value for pair in details.invocation_metadata}

            def export(body: bytes, context: grpc.ServicerContext) -> bytes:
                answer = receiver.take(details.method, headers, body)
                if answer.code != "OK":
                    context.abort(grpc.StatusCode[answer.code], "as told")
                return answer.body

            return grpc.unary_unary_rpc_method_handler(export)

    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool, handlers=[Service()])
    if tls is not None:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        port = server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    receiver.url = f"{'https' if tls else 'http'}://localhost:{port}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait(5)
        pool.shutdown()


class TlsFiles(NamedTuple):
    """A certificate for localhost that vouches for itself, and its key."""

    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_tls_files(folder: Path) -> TlsFiles | None:
    """Draw a key and a certificate; None where there is no openssl."""
    command = shutil.which("openssl")
    if command is None:
        return None
    files = TlsFiles(folder / "certificate.pem", folder / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    output = ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(
        [command, "req", "-x509", *curve, *subject, *output], check=True, capture_output=True, timeout=60
    )
    return files
