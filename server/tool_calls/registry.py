"""The parsers by the names that --tool-call-parser takes."""

from collections.abc import Callable, Sequence
from importlib import import_module

from vllm_obs.server.tool_calls.events import Tool, ToolParser

MakeParser = Callable[[Sequence[Tool]], ToolParser]

PARSERS = {
    "hermes": "vllm_obs.server.tool_calls.hermes:HermesParser",
    "llama3_json": "vllm_obs.server.tool_calls.llama3_json:Llama3JsonParser",
    "mistral": "vllm_obs.server.tool_calls.mistral:MistralParser",
    "pythonic": "vllm_obs.server.tool_calls.pythonic:PythonicParser",
    "qwen3_coder": "vllm_obs.server.tool_calls.qwen3_coder:Qwen3CoderParser",
}
"""Name → module:class. Another can be named as module:class itself."""


def tool_parser(name: str) -> MakeParser:
    """What makes a parser of that name for each reply. ValueError for a name that is none."""
    place = PARSERS.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        raise ValueError(f"there is no tool parser {name[:64]!r}; there are {', '.join(PARSERS)}, or MODULE:CLASS")
    try:
        made: MakeParser = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the tool parser {name[:64]!r} cannot be loaded: {error}") from None
    return made
