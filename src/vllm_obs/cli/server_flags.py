"""The flags of the HTTP side, and how they become a ServerConfig."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vllm_obs.cli.server_flags_observability import check_observability, metrics_version
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import Flag, json_strings, number, whole_number
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.key_file import check_keys, read_keys
from vllm_obs.server.profile_config import profiler_environment, read_profiler_config
from vllm_obs.server.tls import check_tls
from vllm_obs.server.tool_calls.registry import tool_parser
from vllm_obs.server.trace_environment import TraceEnvironment
from vllm_obs.telemetry.slo_targets import slo_targets, slo_text

MIN_STALL_SECONDS = 1.0
"""Progress is looked for twice a second, and one layer of a long step may take a while."""
MAX_RESTARTS = 100
MAX_API_SERVERS = 64
TRACE_MODULES = ("model", "worker", "all")


def trace_modules(text: str) -> str:
    """One or several of vLLM's modules, with commas between."""
    for module in text.split(","):
        if module not in TRACE_MODULES:
            raise ValueError(f"{module[:64]!r} is not one of {', '.join(TRACE_MODULES)}")
    return text


def slo_words(text: str) -> str:
    """Objectives, written in seconds."""
    return slo_text(slo_targets(text))


SERVER_FLAGS = (
    Flag("host", "Server", "Address to listen on.", default_text="every interface"),
    Flag("port", "Server", "Port to listen on; 0 takes a free one.", parse=whole_number),
    Flag("uds", "Server", "Unix socket to listen on instead of host and port.", metavar="PATH"),
    Flag("api_server_count", "Server", "How many API servers share the port; with several a launcher owns them.",
         parse=whole_number, metavar="N"),
    Flag("api_key", "Server", "Keys, one of which each request must carry.", "values", metavar="KEY"),
    Flag("api_key_file", "Server", "File with such keys, one a line, read again when it changes; NAME<tab>KEY "
         "names one's account, and keys with one name share it.",
         metavar="FILE"),
    Flag("root_path", "Server", "Path under which a proxy publishes the API.", metavar="PATH"),
    Flag("allowed_origins", "Server", "Origins a browser may call from.", parse=json_strings, metavar="JSON"),
    Flag("allow_credentials", "Server", "Let browsers send credentials.", "pair"),
    Flag("enable_prompt_tokens_details", "Server", "Tell in `usage` how many prompt tokens were cached.", "pair"),
    Flag("enable_force_include_usage", "Server", "Send `usage` at the end of every stream.", "pair"),
    Flag("omit_empty_fields", "Server", "Leave out of whole replies the nulls that OpenAI's schema does not have.",
         "pair"),
    Flag("require_model", "Server", "Refuse requests that name no model, as OpenAI does.",
         "pair"),
    Flag("disable_fastapi_docs", "Server", "No /docs, /redoc and /openapi.json.", "pair"),
    Flag("enable_auto_tool_choice", "Server", "Let the model call tools by itself (tool_choice auto).", "pair"),
    Flag("tool_call_parser", "Server", "How this model writes tool calls: hermes, llama3_json, mistral, pythonic, "
         "qwen3_coder, or MODULE:CLASS.", metavar="NAME"),
    Flag("reasoning_parser", "Server", "How this model writes what it thinks.", choices=("qwen3", "deepseek_r1")),
    Flag("chat_template_content_format", "Server", "How the chat template gets a content: as text (string), as a "
         "list of parts (openai), or as it reads it (auto).", choices=("auto", "string", "openai")),
    Flag("return_tokens_as_token_ids", "Server", "Name the tokens of log-probabilities token_id:N.", "pair"),
    Flag("enable_request_id_headers", "Server", "Send X-Request-Id with every reply.", "pair"),
    Flag("ssl_keyfile", "Server", "File with the private key of the certificate.", metavar="FILE"),
    Flag("ssl_certfile", "Server", "File with the certificate; the port speaks TLS then.", metavar="FILE"),
    Flag("ssl_ca_certs", "Server", "File with the authorities that sign the clients' certificates.",
         metavar="FILE"),
    Flag("ssl_cert_reqs", "Server", "0: clients show no certificate; 1: they may; 2: they must.",
         parse=whole_number, metavar="NUMBER"),
    Flag("startup_timeout", "Server", "How long the engine may take to become ready.", parse=number,
         metavar="SECONDS"),
    Flag("shutdown_timeout", "Server", "How long running requests may go on after SIGTERM.", parse=number,
         metavar="SECONDS"),
    Flag("request_timeout", "Server", "Most a request may take, queue and stream included; its X-Request-Timeout "
         "may say less. 504 after it.", parse=number, metavar="SECONDS", default_text="no limit"),
    Flag("engine_restarts", "Server", "How often in 60 s of serving another engine is started in the place of one "
         "that died; after that (with 0 at once) the server ends with 70.", parse=whole_number, metavar="N"),
    Flag("otlp_traces_endpoint", "Observability", "Where traces go, over OTLP; OTEL_… variables hold the rest.",
         metavar="URL", default_text="as OTEL_EXPORTER_OTLP_ENDPOINT says, else no traces"),
    Flag("trace_sample_rate", "Observability", "Share of requests traced that their caller has not decided on.",
         parse=number, metavar="FRACTION", default_text="as OTEL_TRACES_SAMPLER says, else 1"),
    Flag("collect_detailed_traces", "Observability",
         "model, worker or all: taken as vLLM takes it; traces are as detailed without.", "values",
         parse=trace_modules, metavar="MODULES"),
    Flag("enable_per_request_metrics", "Observability", "Tell in each reply how long its parts took.", "pair"),
    Flag("inspect_host", "Observability", "Address the inspector listens on.", metavar="HOST"),
    Flag("inspect_port", "Observability", "Port of the inspector; a free one where it is taken.",
         parse=whole_number, metavar="PORT", default_text="the API's + 1000"),
    Flag("enable_mfu_metrics", "Observability", "Metrics of estimated operations and bytes.", "pair"),
    Flag("show_hidden_metrics_for_version", "Observability", "Show metrics under names that were given up.",
         parse=metrics_version, metavar="VERSION"),
    Flag("slo", "Observability", "What each request should keep to: ttft=0.5,tpot=50ms,e2e=10 (seconds or ms).",
         parse=slo_words, metavar="TARGETS", default_text="nothing"),
    Flag("stall_timeout", "Observability",
         "An engine that has work and makes no progress for so long is stalled: not ready, and told of.",
         parse=number, metavar="SECONDS"),
    Flag("profiler_config", "Observability",
         'Open /start_profile and /stop_profile: {"profiler": "torch", "torch_profiler_dir": …} as in vLLM.',
         parse=read_profiler_config, metavar="JSON", default_text="closed, unless VLLM_TORCH_PROFILER_DIR is set"),
    Flag("disable_telemetry", "Observability", "Record nothing and start no Observer.", "switch", is_hidden=True),
    Flag("uvicorn_log_level", "Logging", "Level of the HTTP server's log.",
         choices=("critical", "error", "warning", "info", "debug", "trace")),
    Flag("max_log_len", "Logging", "Longest piece of a request that the log quotes; it never quotes a prompt.",
         parse=whole_number, metavar="CHARS", default_text="128, as long as a label may be"),
    Flag("disable_uvicorn_access_log", "Logging", "No line for each HTTP request.", "pair"),
)  # fmt: skip
"""Each sets the field of ServerConfig with its name; the key flags set `api_keys` together."""


def server_defaults() -> dict[str, Any]:
    """The default of every flag that is a field of ServerConfig."""
    return {field.name: field.default for field in fields(ServerConfig)}


def server_config_from(values: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ServerConfig:
    """The ServerConfig of the given flags. Keys come from flags, a file, or VLLM_API_KEY as in vLLM."""
    names = {field.name for field in fields(ServerConfig)}
    own = {name: value for name, value in values.items() if name in names}
    names_by_key = dict.fromkeys(values.get("api_key", ()), "")
    if "api_key_file" in values:
        for key, name in read_keys(values["api_key_file"]).items():
            names_by_key[key] = names_by_key.get(key) or name
    if not names_by_key and environ.get("VLLM_API_KEY"):
        names_by_key = {environ["VLLM_API_KEY"]: ""}
    modules = ",".join(own.pop("collect_detailed_traces", ())).split(",")
    own["collect_detailed_traces"] = tuple(dict.fromkeys(filter(None, modules)))
    own |= {"api_keys": tuple(names_by_key), "api_key_names": tuple(names_by_key.values())}
    own["num_given_keys"] = len(dict.fromkeys(values.get("api_key", ())))
    if "profiler_config" not in own:
        own["profiler_config"] = profiler_environment(environ)
    config = ServerConfig(**own, trace_environment=TraceEnvironment.of(environ))
    _check(config)
    return config


def _check_tool_parser(config: ServerConfig) -> None:
    name = config.tool_call_parser
    if config.enable_auto_tool_choice and name is None:
        raise ConfigError("--enable-auto-tool-choice needs --tool-call-parser")
    if name is not None:
        try:
            tool_parser(name)
        except ValueError as error:
            raise ConfigError(f"--tool-call-parser: {error}") from None


def _check(config: ServerConfig) -> None:
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"--port {config.port} is not between 0 and 65535")
    for name, seconds in (("startup", config.startup_timeout), ("shutdown", config.shutdown_timeout)):
        if not 0 <= seconds <= 86_400:
            raise ConfigError(f"--{name}-timeout {seconds:g} is not between 0 and 86400 seconds")
    if config.request_timeout is not None and not 0 < config.request_timeout <= 86_400:
        raise ConfigError(f"--request-timeout {config.request_timeout:g} is not above 0 and at most 86400 seconds")
    if not MIN_STALL_SECONDS <= config.stall_timeout <= 86_400:
        raise ConfigError(
            f"--stall-timeout {config.stall_timeout:g} is not between {MIN_STALL_SECONDS:g} and 86400 seconds"
        )
    if not 0 <= config.engine_restarts <= MAX_RESTARTS:
        raise ConfigError(f"--engine-restarts {config.engine_restarts} is not between 0 and {MAX_RESTARTS}")
    if not 1 <= config.api_server_count <= MAX_API_SERVERS:
        raise ConfigError(f"--api-server-count {config.api_server_count} is not between 1 and {MAX_API_SERVERS}")
    if config.max_log_len is not None and config.max_log_len < 0:
        raise ConfigError(f"--max-log-len {config.max_log_len} is below 0")
    check_tls(config)
    check_observability(config)
    _check_tool_parser(config)
    check_keys(config.api_keys)
    if config.root_path and not config.root_path.startswith("/"):
        raise ConfigError(f"--root-path {config.root_path:.64} does not begin with /")
