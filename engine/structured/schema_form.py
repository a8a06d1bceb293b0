"""A JSON Schema as the compiler is given it: formats that it does not know left out, objects closed."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""Others are annotations, which say nothing about what is valid."""

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PLAIN_VALUES = frozenset({"enum", "const", "default", "examples", "required", "x-guidance"})
_MORE_PROPERTIES = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "minProperties", "unevaluatedProperties"}
)
_OF_AN_OBJECT = _MORE_PROPERTIES | {"properties", "required"}
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "$ref"})
_COMBINING = frozenset({"allOf", "if", "dependentSchemas", "unevaluatedProperties"})


def compilable(schema: Schema) -> Schema:
    """The schema for the compiler: what matches it matches the one given, too.

    An object that names its properties gets no others, unless the schema says that it may, or puts an object's
    properties together out of several schemas: a model that may write properties of its own finds no end. Raises
    RecursionError for what is too deep.
    """
    return _for_compiler(schema, all(map(_stands_alone, _schemas_in(schema))))


def _schemas_in(schema: Schema) -> Iterator[Schema]:
    """The schema itself and all that it holds, each once, though one may stand in several places or in itself."""
    waiting, seen = [schema], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += _parts_of(found)


def _parts_of(schema: Schema) -> Iterator[Schema]:
    """Those just below it."""
    for keyword, value in schema.items():
        if keyword in _PLAIN_VALUES:
            continue
        by_name = keyword in _BY_NAME and isinstance(value, Mapping)
        for part in value.values() if by_name else value if isinstance(value, list) else (value,):
            if isinstance(part, Mapping):
                yield part


def _stands_alone(schema: Schema) -> bool:
    """Whether the properties of its objects are said in one place."""
    return not (_COMBINING & schema.keys() or (_ALTERNATIVES & schema.keys() and _OF_AN_OBJECT & schema.keys()))


def _for_compiler(schema: Schema, is_closing: bool) -> Schema:
    written: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "format" and isinstance(value, str) and value not in KNOWN_FORMATS:
            continue
        if keyword in _PLAIN_VALUES:
            written[keyword] = value
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            written[keyword] = {name: _of_value(part, is_closing) for name, part in value.items()}
        else:
            written[keyword] = _of_value(value, is_closing)
    if is_closing and _is_open_by_default(schema):
        written["additionalProperties"] = False
    return written


def _of_value(value: Any, is_closing: bool) -> Any:
    if isinstance(value, Mapping):
        return _for_compiler(value, is_closing)
    return [_of_value(part, is_closing) for part in value] if isinstance(value, list) else value


def _is_open_by_default(schema: Schema) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or _MORE_PROPERTIES & schema.keys():
        return False
    return isinstance(required, list) and all(isinstance(name, str) and name in properties for name in required)
