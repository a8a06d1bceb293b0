"""What `vllm-obs chat` and `vllm-obs complete` take, under vLLM's names, and the server that comes of it."""

import argparse
import os
from typing import Any, NamedTuple

from vllm_obs.cli.chat_address import base_url, choice_note
from vllm_obs.cli.chat_screen import Screen
from vllm_obs.cli.chat_server import ChatServer, api_key
from vllm_obs.cli.parser import Parser, add_flags
from vllm_obs.engine.flags import Flag, number, whole_number

TALK_FLAGS = (
    Flag("url", "Server", "Address of the server's API.",
         default_text="of the newest server that lives here, else http://127.0.0.1:8000/v1"),
    Flag("api_key", "Server", "Key to send.", metavar="KEY", default_text="VLLM_API_KEY, else OPENAI_API_KEY"),
    Flag("max_tokens", "Sampling", "Most tokens of a reply.", parse=whole_number, default_text="the server's"),
    Flag("temperature", "Sampling", "0 is greedy.", parse=number, default_text="the server's"),
)  # fmt: skip
"""Besides those with several names, which `talk_parser` adds."""


class Aliases(NamedTuple):
    """A flag that has several names."""

    names: tuple[str, ...]
    field: str
    metavar: str
    help: str


MODEL = Aliases(("--model", "--model-name"), "model", "NAME", "Model to ask. [the server's first]")


def talk_parser(command: str, usage: str, description: str, own: tuple[Aliases, ...]) -> Parser:
    """The parser of one of the two, with the flags that only it has."""
    parser = Parser(f"vllm-obs {command}", usage, description)
    for aliases in (*own, MODEL):
        parser.add_argument(
            *aliases.names,
            dest=aliases.field,
            metavar=aliases.metavar,
            help=aliases.help,
            default=argparse.SUPPRESS,
        )
    add_flags(parser, TALK_FLAGS, {})
    return parser


def server_of(options: dict[str, Any]) -> ChatServer:
    """The server that is asked. Raises ConfigError."""
    return ChatServer(base_url(options.get("url")), api_key(options.get("api_key"), os.environ))


def tell_server(options: dict[str, Any], server: ChatServer, screen: Screen) -> None:
    """Say on standard error which server is asked, where that was not asked for and is not plain."""
    if "url" not in options and (note := choice_note(server.url)):
        screen.note(note)


def sampling_of(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that were given."""
    return {name: options[name] for name in ("max_tokens", "temperature") if name in options}
