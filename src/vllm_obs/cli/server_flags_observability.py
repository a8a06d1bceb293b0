"""What is checked of the observability flags before anything is started."""

import re
import socket
from urllib.parse import urlsplit

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.otlp_settings import OtlpSettingsError, check_endpoint

MAX_URL_CHARS = 2048
_VERSION = re.compile(r"v?\d{1,6}(\.\d{1,6}){1,3}([.+-]?[a-z0-9][a-z0-9.+-]{0,40})?", re.ASCII | re.IGNORECASE)


def metrics_version(text: str) -> str:
    """A version of vLLM as people write it: 0.12, 0.12.1, 0.13.0rc1."""
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a version such as 0.12.0")
    return text


def check_observability(config: ServerConfig) -> None:
    """Raise ConfigError for what no Observer could work with."""
    if config.trace_sample_rate is not None and not 0 <= config.trace_sample_rate <= 1:
        raise ConfigError(f"--trace-sample-rate {config.trace_sample_rate:g} is not between 0 and 1")
    endpoint = config.otlp_traces_endpoint
    if config.collect_detailed_traces and not (endpoint or config.trace_environment.has_endpoint):
        raise ConfigError("--collect-detailed-traces needs --otlp-traces-endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    _check_inspect_port(config)
    if not config.disable_telemetry:
        _check_inspect_host(config.inspect_host)


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.isprintable() or not 0 < len(endpoint) <= MAX_URL_CHARS:
        raise ConfigError(f"--otlp-traces-endpoint is empty, unprintable or over {MAX_URL_CHARS} characters long")
    try:
        check_endpoint(endpoint)
    except OtlpSettingsError as error:
        raise ConfigError(f"--otlp-traces-endpoint: {error}") from None
    # Without a scheme only gRPC's HOST:PORT can be meant; a lone word is a slip.
    if "//" not in endpoint and urlsplit(f"//{endpoint}").port is None:
        raise ConfigError(f"--otlp-traces-endpoint {endpoint:.64} is neither http://HOST:PORT nor HOST:PORT")


def _check_inspect_port(config: ServerConfig) -> None:
    port = config.inspect_port
    if port is None:
        return
    if not 0 <= port <= 65535:
        raise ConfigError(f"--inspect-port {port} is not between 0 and 65535")
    if port and port == config.port and config.uds is None:
        raise ConfigError(f"--inspect-port {port} is the port of the API; choose another")


def _check_inspect_host(host: str) -> None:
    """Take a free port there and let go of it: an address of another machine has none for us."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError):
        raise ConfigError(f"--inspect-host {host:.64} is no address of this machine") from None
