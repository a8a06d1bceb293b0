"""PROCESS_METRICS and HTTP_METRICS: what client libraries and HTTP instrumentation show of any Python server."""

from vllm_obs.telemetry.catalogue_row import Metric

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
HTTP_STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
GC_GENERATIONS = ("0", "1", "2")

# fmt: off
FINE_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0,
    60.0,
)
# fmt: on
COARSE_BUCKETS = (0.1, 0.5, 1.0)


def _root(name: str, kind: str, text: str) -> Metric:
    counts = kind == "counter"
    return Metric(f"process_{name}", "counter" if counts else "gauge", text, needs_stats=False)


def _gc(name: str, text: str) -> Metric:
    values = {"generation": GC_GENERATIONS}
    return Metric(f"python_gc_{name}_total", "counter", text, ("generation",), values=values, needs_stats=False)


PROCESS_METRICS: tuple[Metric, ...] = (
    _gc("objects_collected", "Objects the root process's garbage collector freed."),
    _gc("objects_uncollectable", "Objects the root process's garbage collector could not free."),
    _gc("collections", "Runs of the root process's garbage collector."),
    Metric(
        "python_info",
        "gauge",
        "The Python the servers run; the value is 1.",
        ("implementation", "major", "minor", "patchlevel", "version"),
        needs_stats=False,
    ),
    _root("virtual_memory_bytes", "gauge", "Address space of the root process (the API server)."),
    _root("resident_memory_bytes", "gauge", "Memory of the root process that is in RAM."),
    _root("start_time_seconds", "gauge", "When the root process began, in seconds since 1970."),
    _root("cpu_seconds_total", "counter", "CPU time of the root process, user and system."),
    _root("open_fds", "gauge", "Files and sockets the root process has open."),
    _root("max_fds", "gauge", "Most files and sockets the root process may have open."),
)

HTTP_METRICS: tuple[Metric, ...] = (
    Metric(
        "http_requests_total",
        "counter",
        "HTTP requests answered, or given up by their client (499); probes and /metrics are not counted.",
        ("handler", "method", "status"),
        needs_stats=False,
    ),
    Metric("http_request_size_bytes", "summary", "Bytes of request bodies.", ("handler",), needs_stats=False),
    Metric("http_response_size_bytes", "summary", "Bytes of reply bodies.", ("handler",), needs_stats=False),
    Metric(
        "http_request_duration_highr_seconds",
        "histogram",
        "From a request's first byte to its reply's last, in fine steps.",
        buckets=FINE_BUCKETS,
        needs_stats=False,
    ),
    Metric(
        "http_request_duration_seconds",
        "histogram",
        "From a request's first byte to its reply's last, by handler.",
        ("handler", "method"),
        COARSE_BUCKETS,
        needs_stats=False,
    ),
)
