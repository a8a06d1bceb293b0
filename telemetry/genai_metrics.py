"""GenAiMetrics: the three server histograms of OpenTelemetry's GenAI conventions, to be exported over OTLP."""

from vllm_obs.telemetry.metric_series import Histogram as Series
from vllm_obs.telemetry.otlp_encoding import Histogram as OtlpHistogram
from vllm_obs.telemetry.otlp_encoding import HistogramPoint
from vllm_obs.telemetry.span import Attributes

# fmt: off
DURATION_BOUNDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)
TOKEN_TIME_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# fmt: on

DURATION = "gen_ai.server.request.duration"
FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TOKEN_TIME = "gen_ai.server.time_per_output_token"

_BOUNDS = {DURATION: DURATION_BOUNDS, FIRST_TOKEN: FIRST_TOKEN_BOUNDS, TOKEN_TIME: TOKEN_TIME_BOUNDS}
_DESCRIPTIONS = {
    DURATION: "From a request's first byte to its reply's last.",
    FIRST_TOKEN: "From a request's first byte to its first token, of requests that got one.",
    TOKEN_TIME: "Time per token after the first, of requests that succeeded.",
}
OPERATION_OF_HANDLER = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
OPERATIONS = ("chat", "text_completion", "embeddings")
PROVIDER = "vllm_obs"
MAX_SERIES = 256


class GenAiMetrics:
    """Counts by operation, and the duration by error too.

    They are not kept over a restart of the Observer: OTLP says with each number from when on it counts.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._series: dict[tuple[str, str, str], Series] = {}

    def ended(self, handler: str, seconds: float, error: str) -> None:
        """An HTTP request is over; only those that ask for inference count. `error` is empty if it did well."""
        operation = OPERATION_OF_HANDLER.get(handler)
        if operation is not None:
            self._observe(DURATION, operation, error, seconds)

    def first_token(self, operation: str, seconds: float) -> None:
        """A sequence has its first token."""
        self._observe(FIRST_TOKEN, operation, "", seconds)

    def token_time(self, operation: str, seconds: float) -> None:
        """A sequence that ended well took so long for each token after its first."""
        self._observe(TOKEN_TIME, operation, "", seconds)

    def histograms(self) -> list[OtlpHistogram]:
        """What has been observed until now, in seconds; histograms without any are left out."""
        points: dict[str, list[HistogramPoint]] = {}
        for (name, operation, error), series in self._series.items():
            point = HistogramPoint(self._attributes(operation, error), series.bounds, series.counts, series.total)
            points.setdefault(name, []).append(point)
        return [OtlpHistogram(name, _DESCRIPTIONS[name], "s", points[name]) for name in points]

    def _observe(self, name: str, operation: str, error: str, seconds: float) -> None:
        self._at(name, operation if operation in OPERATIONS else "_OTHER", error).observe(seconds)

    def _at(self, name: str, operation: str, error: str) -> Series:
        key = (name, operation, error)
        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (name, operation, "_OTHER" if error else "")
        return self._series.setdefault(key, Series(_BOUNDS[name]))

    def _attributes(self, operation: str, error: str) -> Attributes:
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
        }
        return attributes | {"error.type": error} if error else attributes
