"""`vllm-obs run-batch`: a file of OpenAI requests in, a file of their replies out."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_obs.cli.foreign_flags import refuse_misspelt
from vllm_obs.cli.parser import Parser, add_flags
from vllm_obs.cli.run_batch_files import opened
from vllm_obs.cli.serve import CONFIG_FLAG, MODEL_FLAG, flag_defaults
from vllm_obs.cli.server_flags import SERVER_FLAGS, server_config_from
from vllm_obs.cli.settings import read_config_file, read_environment
from vllm_obs.engine.args import engine_args_from
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import ENGINE_FLAGS
from vllm_obs.server.config import ServerConfig

PROCESS_TITLE = "vllm-obs::APIServer"

ABOUT_LISTENING = frozenset(
    (
        "host",
        "port",
        "uds",
        "api_server_count",
        "api_key",
        "api_key_file",
        "root_path",
        "allowed_origins",
        "allowed_methods",
        "allowed_headers",
        "allow_credentials",
        "disable_fastapi_docs",
        "enable_force_include_usage",
        "uvicorn_log_level",
        "disable_uvicorn_access_log",
    )
)
"""Flags of the server that mean nothing where nobody connects to it."""
BATCH_FLAGS = (
    *ENGINE_FLAGS,
    *(flag for flag in SERVER_FLAGS if flag.name not in ABOUT_LISTENING and not flag.name.startswith("ssl_")),
    CONFIG_FLAG,
)

_USAGE = "vllm-obs run-batch -i FILE -o FILE [--model MODEL] [FLAGS]"
_DESCRIPTION = """\
Answer the requests of an OpenAI batch file.

Each line of the input is {"custom_id": ID, "method": "POST", "url": "/v1/chat/completions", "body": {...}};
each line of the output holds the custom_id and the reply that the server gives. The order is that in which
replies come. FILE is a local file, or - for standard input and output."""
_EPILOG = """\
Ctrl-C reads no further and gives requests under way --shutdown-timeout seconds; once more cuts them off. What was
answered is in the output. Progress is told on standard error. [In brackets: the default.]

Exit codes: 0 every line is answered, 1 some with an error or cut off, 70 the engine died, 78 bad configuration."""


def main(argv: list[str]) -> int:
    """Answer the batch; the exit code of the process."""
    started_at = time.monotonic_ns()
    values = read_settings(argv)
    paths = values.pop("input_file", None), values.pop("output_file", None)
    if paths[0] is None or paths[1] is None:
        raise ConfigError("-i and -o are needed: the file with the requests, and the file for the replies")
    server = server_config(values)
    config = engine_args_from(values).create_engine_config()
    with opened(paths[0], paths[1]) as files:
        _set_title()
        from vllm_obs.server.batch_run import run_batch

        return run_batch(config, server, files, started_at)


def read_settings(argv: Sequence[str]) -> dict[str, Any]:
    """All settings by name: from the command line, else the environment, else the --config file."""
    parser = build_parser()
    refuse_misspelt(argv, parser.options)
    flags = (MODEL_FLAG, *BATCH_FLAGS)
    values = read_environment(flags) | parser.parse(argv)
    if "config" in values:
        values = read_config_file(values["config"], [f for f in flags if f is not CONFIG_FLAG]) | values
    return values


def server_config(values: dict[str, Any]) -> ServerConfig:
    """The server of a batch. It has no keys, wherever they might be given: nobody else can reach it."""
    return replace(server_config_from(values), api_keys=(), api_key_names=(), api_key_file=None)


def build_parser() -> Parser:
    """The parser of all flags, in groups."""
    parser = Parser("vllm-obs run-batch", _USAGE, _DESCRIPTION, _EPILOG)
    files = parser.add_argument_group("Batch")
    for short, name, text in (
        ("-i", "--input-file", "Requests, one a line."),
        ("-o", "--output-file", "Replies, one a line; what the file held is overwritten."),
    ):
        files.add_argument(short, name, metavar="FILE", default=argparse.SUPPRESS, help=text)
    model = replace(MODEL_FLAG, help="A .gguf file, a directory or a hub id.", default_text="the packaged one")
    add_flags(parser, (model, *BATCH_FLAGS), flag_defaults())
    return parser


def _set_title() -> None:
    from setproctitle import setproctitle

    setproctitle(PROCESS_TITLE)
