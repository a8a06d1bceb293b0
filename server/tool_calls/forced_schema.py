"""The JSON Schemas that make a reply consist of tool calls."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_DEFINITIONS = ("$defs", "definitions")


class CallableTool(NamedTuple):
    """A function's name and the JSON Schema of its parameters."""

    name: str
    parameters: Mapping[str, Any]


def named_schema(tool: CallableTool) -> Mapping[str, Any]:
    """The arguments of this one; a function without parameters takes none."""
    return tool.parameters or NO_PARAMETERS


def required_schema(tools: Sequence[CallableTool], is_single: bool) -> dict[str, Any]:
    """A list of at least one call (or just one) of any of these.

    A schema's references are to its own root, so what it defines moves to the root under a name of its own.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        parameters = _moved(tool.parameters or NO_PARAMETERS, f"tool_{number}_", definitions)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
    }
    if is_single:
        schema["maxItems"] = 1
    return schema | ({"$defs": definitions} if definitions else {})


def _moved(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    found = {
        f"#/{keyword}/{name}": (prefix + name, part)
        for keyword in _DEFINITIONS
        for name, part in _named(schema.get(keyword)).items()
    }
    places = {reference: f"#/$defs/{name}" for reference, (name, _) in found.items()}
    for name, part in found.values():
        definitions[name] = _with_references(part, places)
    rest = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    return _with_references(rest, places)


def _named(definitions: Any) -> Mapping[str, Any]:
    """The definitions of a schema; what is no object defines nothing, and who refers to it is refused later."""
    return definitions if isinstance(definitions, Mapping) else {}


def _with_references(part: Any, places: Mapping[str, str]) -> Any:
    """A copy in which references to moved definitions lead to where they are now. Bounded by the body's depth."""
    if isinstance(part, Mapping):
        return {
            key: places.get(value, value)
            if key == "$ref" and isinstance(value, str)
            else _with_references(value, places)
            for key, value in part.items()
        }
    return [_with_references(entry, places) for entry in part] if isinstance(part, list) else part
