"""How one API server listens and what it allows; frozen, made by the CLI."""

from dataclasses import dataclass, field

from vllm_obs.server.accounts import account_labels
from vllm_obs.server.profile_config import CLOSED, ProfilerConfig
from vllm_obs.server.trace_environment import NOTHING_SAID, Sampling, TraceEnvironment

KIB = 1024
MIB = 1024 * KIB
MAX_DETAIL_LEVEL = 3


@dataclass(frozen=True)
class Limits:
    """The bounds of one HTTP exchange; sizes in bytes, times in seconds. All hold while reading, not after."""

    max_body_bytes: int = 32 * MIB
    max_head_bytes: int = 64 * KIB
    max_num_headers: int = 200
    max_num_connections: int = 8192
    max_url_bytes: int = 16 * KIB
    head_timeout_seconds: float = 10.0
    body_timeout_seconds: float = 30.0
    send_timeout_seconds: float = 120.0
    keep_alive_seconds: int = 5
    max_json_depth: int = 64
    max_sequences: int = 1024
    max_stored_responses: int = 4096
    max_stored_response_bytes: int = 64 * MIB
    max_background_responses: int = 64


@dataclass(frozen=True)
class ServerConfig:
    """The flags of the HTTP side, under the names of the command line.

    `api_key_names` are parallel to `api_keys`, or empty; a name is empty where a key has none. The first
    `num_given_keys` stay, the others come from `api_key_file` and change with it. `slo` is what is
    promised of each sequence, in the words of its flag. `host` None is every interface. `uds` is the path of the
    Unix socket that replaces host and port.
    `inspect_port` None is one near the API's. `trace_sample_rate` None leaves it to the environment, and else
    traces all that callers have not decided on. An engine with work that does not move for `stall_timeout`
    seconds makes the server not ready. `engine_restarts` is how often within a minute another engine is started in
    the place of one that died. `tool_call_parser` names what reads the calls that a model makes by itself,
    where `enable_auto_tool_choice` lets it. `chat_template_content_format` is auto, string or openai: how the
    template is given a content. `max_log_len` bounds what a line of the log quotes of a request, which here is no
    prompt. With `ssl_certfile` the port speaks TLS; `ssl_cert_reqs` is Python's: 0, 1 or 2 for a client that
    must not, may or has to show a certificate. `shutdown_timeout` is how long running requests may go on after
    SIGTERM, in seconds; `request_timeout` how long each may take at all, None for ever. Of `api_server_count`
    API servers on one port this is the one of `client_index`.
    """

    host: str | None = None
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_names: tuple[str, ...] = ()
    api_key_file: str | None = None
    num_given_keys: int = 0
    root_path: str = ""
    uvicorn_log_level: str = "info"
    disable_uvicorn_access_log: bool = False
    disable_fastapi_docs: bool = False
    shutdown_timeout: float = 30.0
    request_timeout: float | None = None
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    omit_empty_fields: bool = False
    require_model: bool = False
    allowed_origins: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    startup_timeout: float = 600.0
    otlp_traces_endpoint: str | None = None
    trace_sample_rate: float | None = None
    collect_detailed_traces: tuple[str, ...] = ()
    enable_per_request_metrics: bool = False
    inspect_host: str = "127.0.0.1"
    inspect_port: int | None = None
    enable_mfu_metrics: bool = False
    show_hidden_metrics_for_version: str | None = None
    stall_timeout: float = 10.0
    engine_restarts: int = 3
    slo: str = ""
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    return_tokens_as_token_ids: bool = False
    chat_template_content_format: str = "auto"
    enable_request_id_headers: bool = True
    max_log_len: int | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    disable_telemetry: bool = False
    api_server_count: int = 1
    client_index: int = 0
    limits: Limits = Limits()
    trace_environment: TraceEnvironment = NOTHING_SAID
    profiler_config: ProfilerConfig = CLOSED

    @property
    def names_by_key(self) -> dict[str, str]:
        """The keys that the server starts with, and their names."""
        return dict(zip(self.api_keys, self.api_key_names or [""] * len(self.api_keys), strict=True))

    @property
    def accounts(self) -> tuple[str, ...]:
        """The label of each key, which requests that carry it are charged to."""
        return account_labels(list(self.names_by_key.values()))

    @property
    def role(self) -> str:
        """What this API server's ring and records are called."""
        return f"APIServer_{self.client_index}"

    @property
    def scheme(self) -> str:
        """How an address of the API begins."""
        return "http" if self.ssl_certfile is None else "https"

    @property
    def is_traced(self) -> bool:
        """Whether flag or environment names an endpoint for traces, and the environment does not forbid them."""
        environment = self.trace_environment
        return bool(self.otlp_traces_endpoint or environment.has_endpoint) and not environment.is_off

    @property
    def sampling(self) -> Sampling:
        """How traces are sampled: by the flag, else by the environment's sampler, else all."""
        if self.trace_sample_rate is not None:
            return Sampling(self.trace_sample_rate)
        return self.trace_environment.sampling or Sampling()

    @property
    def trace_detail_level(self) -> int:
        """0 without traces, else 3: requests with their stages, and the steps they ran in."""
        return MAX_DETAIL_LEVEL if self.is_traced else 0
