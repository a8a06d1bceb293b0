"""JSON Schemas of the kinds that clients send: nested, with enums, patterns, alternatives and bounds; by seed."""

import random
from typing import Any

Schema = dict[str, Any]

WORDS = ("red", "green", "blue", "north", "south", "yes", "no")


def random_schema(seed: int) -> Schema:
    """An object with at least one required property."""
    return _object(random.Random(seed), depth=0)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(["id", "name", "kind", "size", "tags", "at", "inner"], rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _any(rng, depth + 1) for name in names},
        "required": sorted(rng.sample(names, rng.randint(1, len(names)))),
        "additionalProperties": False,
    }


def _any(rng: random.Random, depth: int) -> Schema:
    kinds = [_enum, _text, _pattern, _integer, _number, _flag]
    if depth < 3:
        kinds += [_object_at(depth), _list_at(depth), _either_at(depth)]
    return rng.choice(kinds)(rng)


def _object_at(depth: int) -> Any:
    return lambda rng: _object(rng, depth)


def _list_at(depth: int) -> Any:
    def make(rng: random.Random) -> Schema:
        low = rng.randint(0, 1)
        return {
            "type": "array",
            "items": _any(rng, depth + 1),
            "minItems": low,
            "maxItems": low + rng.randint(0, 2),
        }

    return make


def _either_at(depth: int) -> Any:
    return lambda rng: {"anyOf": [_any(rng, depth + 1), {"type": "null"}]}


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample([*WORDS, 1, 2.5, True, None], rng.randint(1, 4))}


def _text(rng: random.Random) -> Schema:
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(1, 12)}


def _pattern(rng: random.Random) -> Schema:
    return {
        "type": "string",
        "pattern": rng.choice(["^[a-z]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(ab|cd)+$"]),
        "maxLength": 12,
    }


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}


def _number(rng: random.Random) -> Schema:
    low = rng.randint(-5, 5)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 20)}


def _flag(rng: random.Random) -> Schema:
    return {"type": "boolean"}
