"""`vllm-obs serve`: flags to configuration, the port, and then the server."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from vllm_obs.cli.dashboard_child import DashboardChild, DashboardOptions
from vllm_obs.cli.foreign_flags import long_names, refuse_unknown
from vllm_obs.cli.parser import Parser, add_flags
from vllm_obs.cli.server_flags import SERVER_FLAGS, server_config_from, server_defaults
from vllm_obs.cli.settings import read_config_file, read_environment
from vllm_obs.engine.args import SERVED_MAX_NUM_QUEUED_REQS, EngineArgs, engine_args_from
from vllm_obs.engine.device import detect_device
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import ENGINE_FLAGS, Flag, whole_number
from vllm_obs.engine.open_files import require_files
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.console import STDOUT, tell
from vllm_obs.telemetry.slo_targets import slo_doubt

PROCESS_TITLE = "vllm-obs::APIServer"
LAUNCHER_TITLE = "vllm-obs::Launcher"

CONFIG_FLAG = Flag("config", "Server", "YAML file with flags as keys; the command line wins.", metavar="FILE")
MODEL_FLAG = Flag("model", "Model", "The same as MODEL.", metavar="MODEL")
DASHBOARD_FLAGS = (
    Flag("dashboard", "Observability", "Serve the inspector's pages too.", kind="switch"),
    Flag("dashboard_host", "Observability", "Where the pages listen.", metavar="HOST"),
    Flag("dashboard_port", "Observability", "Port of the pages.", parse=whole_number, metavar="PORT",
         default_text="8501, or a free one where it is taken"),
    Flag("dashboard_trace_url", "Observability", "Where traces can be read, with {trace_id} in it.",
         metavar="URL"),
)  # fmt: skip
HEADLESS_FLAG = Flag("headless", "Parallel", "Serve nothing: run this host's ranks for host 0.", kind="switch")
SERVE_FLAGS = (MODEL_FLAG, *ENGINE_FLAGS, HEADLESS_FLAG, *SERVER_FLAGS, *DASHBOARD_FLAGS, CONFIG_FLAG)

_USAGE = "vllm-obs serve [MODEL] [FLAGS]"
_DESCRIPTION = """\
Serve MODEL over the OpenAI API.

MODEL is a .gguf file, a Hugging Face directory (config.json, safetensors, tokenizer.json) or a hub id.
Without one, SmolLM2-135M-Instruct is served from its package. Give it before flags that take several values."""
_EPILOG = """\
Every flag can also be set by an environment variable, --max-model-len by VLLM_OBS_MAX_MODEL_LEN (several values
with commas between), or in the file of --config. The command line wins over the environment, the environment
over the file. VLLM_API_KEY is read too. [In brackets: the default.]

Exit codes: 0 stopped and drained, 1 stopped with work cut off, 70 the engine could not be kept alive,
78 bad configuration or model."""


def main(argv: list[str]) -> int:
    """Serve until told to stop; the exit code of the process."""
    started_at = time.monotonic_ns()
    values = read_settings(argv)
    server = server_config_from(values)
    args = engine_args_from({"max_num_queued_reqs": SERVED_MAX_NUM_QUEUED_REQS} | values)
    if values.get("headless") or args.node_rank:
        return _run_node(args, bool(values.get("headless")))
    require_files()
    _set_title(PROCESS_TITLE if server.api_server_count == 1 else LAUNCHER_TITLE)
    from vllm_obs.cli.listener import bound_listener

    with bound_listener(server) as listener, _engine_ahead(args):
        config = args.create_engine_config()
        _mention_incident()
        if doubt := slo_doubt(server.slo):
            tell(doubt)
        run = _main_of(server)
        with _pages(values) as tell_pages:
            return run(config, server, listener, started_at, tell_pages)


@contextmanager
def _engine_ahead(args: EngineArgs) -> Iterator[None]:
    """An engine that loads while the configuration is read; torch too where its worker is to be in its process."""
    from vllm_obs.engine.engine_titles import ENGINE_MODULE
    from vllm_obs.engine.head_start import head_start

    is_alone = args.distributed_executor_backend in (None, "uni") and args.nnodes == 1
    num_ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    loads_torch = is_alone and num_ranks == 1 and args.load_format != "synthetic"
    with head_start(ENGINE_MODULE, detect_device(args.device) if loads_torch else None):
        yield


def _main_of(server: ServerConfig) -> Callable[..., int]:
    """What runs the server; an API server that is alone needs no launcher."""
    if server.api_server_count == 1:
        from vllm_obs.server.serve import run

        return run
    from vllm_obs.server.serve_many import run_many

    return run_many


def _run_node(args: EngineArgs, is_headless: bool) -> int:
    """This host's ranks for host 0; nothing listens here."""
    from vllm_obs.engine.nodes.agent_main import check_headless, run_agent

    config = args.create_engine_config()
    check_headless(config, is_headless)
    return run_agent(config)


@contextmanager
def _pages(values: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """The inspector's pages beside the server, if they are wanted; gives what lets their address be told."""
    if not values.get("dashboard"):
        yield lambda: None
        return
    pages = DashboardChild(dashboard_options(values))
    try:
        yield pages.tell_address
    finally:
        pages.stop()


def _mention_incident() -> None:
    from vllm_obs.cli.incident_notice import incident_notice

    if notice := incident_notice():
        STDOUT.say(notice)


def read_settings(argv: Sequence[str]) -> dict[str, Any]:
    """All settings by name: from the command line, else the environment, else the --config file."""
    parser = build_parser()
    argv = long_names(argv, parser.options)
    refuse_unknown(argv, parser.options)
    typed = parser.parse(argv)
    model = typed.pop("positional_model", None)
    if model is not None and typed.setdefault("model", model) != model:
        raise ConfigError(f"two models are given: {model:.64} and --model {typed['model']:.64}")
    values = read_environment(SERVE_FLAGS) | typed
    if "config" in values:
        flags = [flag for flag in SERVE_FLAGS if flag is not CONFIG_FLAG]
        values = read_config_file(values["config"], flags) | values
    return values


def build_parser() -> Parser:
    """The parser of all flags, in groups."""
    parser = Parser("vllm-obs serve", _USAGE, _DESCRIPTION, _EPILOG)
    parser.add_argument("positional_model", metavar="MODEL", nargs="?", help=argparse.SUPPRESS)
    add_flags(parser, SERVE_FLAGS, flag_defaults())
    return parser


def dashboard_options(values: dict[str, Any]) -> DashboardOptions:
    """Where the pages are to be."""
    defaults = DashboardOptions()
    return DashboardOptions(
        values.get("dashboard_host", defaults.host),
        values.get("dashboard_port", defaults.port),
        values.get("dashboard_trace_url", defaults.trace_url),
    )


def flag_defaults() -> dict[str, Any]:
    """The default of every flag, from the dataclasses that own them."""
    return {field.name: field.default for field in fields(EngineArgs)} | server_defaults()


def _set_title(title: str) -> None:
    from setproctitle import setproctitle

    setproctitle(title)
