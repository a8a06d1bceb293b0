"""OtlpSettings: where and how one signal is exported, from the flags and OpenTelemetry's environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

GRPC = "grpc"
HTTP = "http/protobuf"
PROTOCOLS = (GRPC, HTTP)
SIGNALS = ("traces", "metrics")

DEFAULT_TIMEOUT_SECONDS = 10.0
MAX_TIMEOUT_SECONDS = 60.0
MAX_NUMBER = 10**9
"""Of the environment; in milliseconds these are eleven days. It also keeps out inf."""

Headers = tuple[tuple[str, str], ...]


class OtlpSettingsError(ValueError):
    """An endpoint, protocol or number that OTLP cannot be exported with."""


@dataclass(frozen=True)
class OtlpFlags:
    """What was said on the command line; it goes before the environment. Empty is not said."""

    endpoint: str = ""
    protocol: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_insecure: bool = False


@dataclass(frozen=True)
class OtlpSettings:
    """One signal's exporter. `endpoint` is a URL for HTTP, `host:port` for gRPC; files are PEM, empty for none."""

    endpoint: str
    protocol: str = GRPC
    headers: Headers = ()
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    is_gzip: bool = False
    is_secure: bool = False
    ca_file: str = ""
    key_file: str = ""
    certificate_file: str = ""


class _Environment:
    """OTEL_EXPORTER_OTLP_*: a signal's own variable goes before the general one."""

    def __init__(self, signal: str, variables: Mapping[str, str]) -> None:
        self._signal = signal.upper()
        self._variables = variables

    def own(self, name: str) -> str:
        return self._variables.get(f"OTEL_EXPORTER_OTLP_{self._signal}_{name}", "").strip()

    def general(self, name: str) -> str:
        return self._variables.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()

    def get(self, name: str) -> str:
        return self.own(name) or self.general(name)


def otlp_settings(signal: str, flags: OtlpFlags, variables: Mapping[str, str]) -> OtlpSettings | None:
    """How `signal` (traces or metrics) is exported, or None if there is no endpoint or it is switched off.

    Raises OtlpSettingsError for what cannot work, before anything is sent.
    """
    environment = _Environment(signal, variables)
    if _is_off(signal, variables):
        return None
    protocol = flags.protocol or environment.get("PROTOCOL") or GRPC
    if protocol not in PROTOCOLS:
        raise OtlpSettingsError(f"the OTLP protocol is {protocol!r}; it must be one of {', '.join(PROTOCOLS)}")
    endpoint = _endpoint(signal, flags, environment, protocol)
    if not endpoint:
        return None
    is_insecure = flags.is_insecure or environment.get("INSECURE").lower() == "true"
    address, is_secure = _address(endpoint, protocol, is_insecure)
    return OtlpSettings(
        endpoint=address,
        protocol=protocol,
        headers=_headers(environment.get("HEADERS"), flags.headers),
        timeout_seconds=_timeout(environment.get("TIMEOUT")),
        is_gzip=environment.get("COMPRESSION") == "gzip",
        is_secure=is_secure,
        ca_file=environment.get("CERTIFICATE"),
        key_file=environment.get("CLIENT_KEY"),
        certificate_file=environment.get("CLIENT_CERTIFICATE"),
    )


def check_endpoint(endpoint: str) -> None:
    """Raise OtlpSettingsError for a URL that no exporter could connect to."""
    _address(endpoint, GRPC, is_insecure=False)


def _is_off(signal: str, variables: Mapping[str, str]) -> bool:
    chosen = variables.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip()
    return variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or chosen == "none"


def _endpoint(signal: str, flags: OtlpFlags, environment: _Environment, protocol: str) -> str:
    """The URL. The flag names that of traces, or a base; other signals go to the same host."""
    if environment.own("ENDPOINT") and not (flags.endpoint and signal == "traces"):
        return environment.own("ENDPOINT")
    base = flags.endpoint or environment.general("ENDPOINT")
    if not base or protocol == GRPC:
        return base
    url = base if "//" in base else f"http://{base}"
    scheme, host, path, query, _ = _split(url)
    if flags.endpoint and signal == "traces" and path.strip("/"):
        # vLLM's users give the whole URL of the traces.
        return url
    path = path.rstrip("/").removesuffix("/v1/traces")
    return urlunsplit((scheme, host, f"{path}/v1/{signal}", query, ""))


def _address(endpoint: str, protocol: str, is_insecure: bool) -> tuple[str, bool]:
    """What to connect to, and whether by TLS. gRPC without a scheme is secure unless told otherwise."""
    scheme, host, *_ = _split(endpoint if "//" in endpoint else f"//{endpoint}")
    if scheme not in ("", "http", "https") or not host:
        raise OtlpSettingsError(f"the OTLP endpoint is {endpoint!r}; it must be http://HOST:PORT or https://…")
    if protocol == HTTP:
        return endpoint, scheme == "https"
    return host, scheme == "https" or (not scheme and not is_insecure)


def _split(url: str) -> SplitResult:
    """The parts of a URL. OtlpSettingsError for brackets that do not close and for a port that is no number."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise OtlpSettingsError(f"the OTLP endpoint {url!r} is no URL: {error}") from None
    return parts


def _headers(text: str, flags: Mapping[str, str]) -> Headers:
    """`name=value,…` with values percent-encoded; names in lower case, as gRPC wants them."""
    pairs = (pair.split("=", 1) for pair in text.split(",") if "=" in pair)
    found = {unquote(name).strip().lower(): unquote(value).strip() for name, value in pairs}
    found |= {name.lower(): value for name, value in flags.items()}
    return tuple(found.items())


def _timeout(text: str) -> float:
    """Seconds, as OpenTelemetry for Python reads it."""
    return min(number(text, DEFAULT_TIMEOUT_SECONDS), MAX_TIMEOUT_SECONDS)


def number(text: str, default: float) -> float:
    """A positive number from the environment; OtlpSettingsError for what is none."""
    if not text:
        return default
    try:
        # Python reads 1_0 as 10, which nobody means.
        found = float(text.replace("_", "?"))
    except ValueError:
        raise OtlpSettingsError(f"{text!r} in the environment is not a number") from None
    if not 0 < found <= MAX_NUMBER:
        raise OtlpSettingsError(f"{text!r} in the environment must be above 0 and at most {MAX_NUMBER}")
    return found
