"""ToolUse: what one chat's tools mean for its prompt, its grammar and the reading of its reply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_obs.server.schema_tools import NamedToolChoice, ToolDefinition
from vllm_obs.server.tool_calls.events import Tool, ToolParser
from vllm_obs.server.tool_calls.forced import NamedReader, RequiredReader
from vllm_obs.server.tool_calls.forced_schema import CallableTool, named_schema, required_schema
from vllm_obs.server.tool_calls.registry import MakeParser
from vllm_obs.server.validation import invalid

if TYPE_CHECKING:
    from vllm_obs.engine.structured.params import StructuredOutputsParams

Choice = NamedToolChoice | str | None


@dataclass(frozen=True)
class ToolUse:
    """`make_reader` reads one choice; None where a reply is text. `schema` is what a forced call must match."""

    make_reader: Callable[[], ToolParser] | None = None
    schema: Any = None
    ends_as_tool_calls: bool = False
    """Whether a reply with calls that stopped by itself says so in finish_reason; a named call says stop."""

    def grammar(self) -> "StructuredOutputsParams | None":
        """What the output must match, for a forced call."""
        if self.schema is None:
            return None
        # Imported here: only who has a grammar needs a compiler.
        from vllm_obs.engine.structured.params import StructuredOutputsParams

        return StructuredOutputsParams(json=self.schema, param="tools")


NO_TOOLS = ToolUse()


def tool_use(
    tools: Sequence[ToolDefinition], choice: Choice, is_single: bool, make_parser: MakeParser | None
) -> ToolUse:
    """What these tools, that choice and the server's parser come to. ApiError 400 where they do not fit.

    `is_single` is parallel_tool_calls=false; a parser's calls are the model's own and are not cut.
    """
    if isinstance(choice, NamedToolChoice):
        return _named(tools, choice.function.name)
    if choice == "required":
        if not tools:
            raise invalid("tool_choice", "required needs tools")
        schema = required_schema([_callable(tool) for tool in tools], is_single)
        return ToolUse(RequiredReader, schema, ends_as_tool_calls=True)
    if choice == "none" or not tools:
        return NO_TOOLS
    if make_parser is None:
        raise invalid(
            "tool_choice",
            "auto needs a server with --enable-auto-tool-choice and --tool-call-parser",
            "unsupported",
        )
    known = [Tool(tool.function.name, (tool.function.parameters or {}).get("properties") or {}) for tool in tools]
    return ToolUse(lambda: make_parser(known), ends_as_tool_calls=True)


def _named(tools: Sequence[ToolDefinition], name: str) -> ToolUse:
    tool = next((tool for tool in tools if tool.function.name == name), None)
    if tool is None:
        raise invalid("tool_choice", "names a function that is not among the tools")
    return ToolUse(lambda: NamedReader(name), named_schema(_callable(tool)))


def _callable(tool: ToolDefinition) -> CallableTool:
    return CallableTool(tool.function.name, tool.function.parameters or {})
