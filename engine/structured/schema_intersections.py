"""How many conditions a schema sets on one text at once.

The compiler intersects them, and whether anything is left takes it time and memory that grow exponentially with
their number: 0.1 s and 45 MB with 14 patterns, 6 s and 500 MB with 18, more than 20 s with 20. No limit of
llguidance's bounds that.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_obs.engine.errors import RequestError

MAX_INTERSECTED = 10

Schema = Mapping[str, Any]
_Counts = tuple[int, int]
"""Conditions on the value itself, and the most on one that it holds."""

_ALL = frozenset({"allOf", "if", "then", "else", "$ref"})
_ANY = frozenset({"anyOf", "oneOf"})
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas"})
_NO_PARTS = frozenset({"enum", "const", "default", "examples", "required", "$defs", "definitions"})


def check_intersections(schema: Schema) -> None:
    """RequestError where a text is held to more than MAX_INTERSECTED patterns, formats and lengths."""
    if (most := most_intersected(schema)) > MAX_INTERSECTED:
        raise RequestError(
            f"The JSON schema holds a text to {most} patterns, formats and lengths at once; "
            f"at most {MAX_INTERSECTED} may be.",
            "structured_outputs",
            reason="unsupported",
        )


def check_inline_schemas(grammar: str) -> None:
    """The same for the schemas behind %json in a Lark grammar. What is no JSON is left to the compiler."""
    decoder = json.JSONDecoder()
    for text in grammar.split("%json")[1:]:
        try:
            schema, _ = decoder.raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            continue
        if isinstance(schema, Mapping):
            check_intersections(schema)


def most_intersected(schema: Schema) -> int:
    """The most conditions on one text. Properties that `allOf` puts together count as one property's."""
    counts: dict[int, _Counts] = {}
    for part in _bottom_up(schema):
        counts[id(part)] = _counts(part, schema, counts)
    return max(counts[id(schema)])


def _bottom_up(root: Schema) -> Iterator[Schema]:
    """Each schema that is reached once, after those it is made of; one that is made of itself first."""
    seen = {id(root)}
    waiting = [(root, _parts(root, root))]
    while waiting:
        schema, parts = waiting[-1]
        for _, part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append((part, _parts(part, root)))
                break
        else:
            waiting.pop()
            yield schema


def _counts(schema: Schema, root: Schema, counts: dict[int, _Counts]) -> _Counts:
    here = ("pattern" in schema) + ("format" in schema) + bool({"minLength", "maxLength"} & schema.keys())
    below = held = 0
    either: dict[str, _Counts] = {}
    for keyword, part in _parts(schema, root):
        part_here, part_below = counts.get(id(part), (0, 0))
        if keyword in _ALL:
            here, below = here + part_here, below + part_below
        elif keyword in _ANY:
            most_here, most_below = either.get(keyword, (0, 0))
            either[keyword] = (max(most_here, part_here), max(most_below, part_below))
        else:
            held = max(held, part_here, part_below)
    for most_here, most_below in either.values():
        here, below = here + most_here, below + most_below
    return here, below + held


def _parts(schema: Schema, root: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas that it is made of or holds, with the keyword each stands under."""
    for keyword, value in schema.items():
        if keyword == "$ref":
            value = _found(root, value)
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            value = list(value.values())
        elif keyword in _NO_PARTS:
            continue
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, Mapping):
                yield keyword, part


def _found(root: Schema, reference: Any) -> Any:
    """What a reference names, or None."""
    if not isinstance(reference, str):
        return None
    found: Any = root
    for name in reference.partition("#")[2].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
