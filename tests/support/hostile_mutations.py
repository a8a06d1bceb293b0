"""Bodies that a route serves, spoilt at random by what its schema says of its fields; one for each number."""

import json
import random
from collections.abc import Iterator
from typing import Any

from hostile_routes import VALID

Schema = dict[str, Any]
Place = tuple[str | int, ...]

EDGES = (
    0,
    -1,
    1,
    2,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
)
NUMBERS = (*EDGES, 10**40, 1.5, -0.5, -0.0, 1e-320, 1e308, 0.1, 1e16, 9007199254740993)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "x",
        "🙂",
        "e\u0301",
        "\u202e",
        "\ufeff",
        "<|im_end|>",
        "null",
        "true",
        "auto",
        "none",
        "required",
    ),
    *(
        "text",
        "json_object",
        "user",
        "assistant",
        "system",
        "tool",
        "function",
        "message",
        "reasoning",
        "../../etc/passwd",
    ),
    *(
        "http://127.0.0.1:9/",
        "{{ 7*7 }}",
        "%s%n",
        "a" * 1025,
        "b" * 70_000,
        "é" * 3000,
        "(",
        "[a-z]+",
        '{"type":"object"}',
    ),
    *("gpt-4", "49152", "-1", "float", "base64", "low", "enabled", "any"),
)
OTHERS = (
    None,
    True,
    False,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"type": None},
    [0],
    ["x"],
    {"a": {"b": ["c"]}},
)
HUGE = (
    [7] * 3000,
    ["x"] * 1100,
    [{}] * 1100,
    {f"k{number}": number for number in range(1100)},
    [[[1]]] * 300,
)
LITERALS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "-" + "9" * 400, '"\\ud800"', '"\\udc00x"'),
    *("1.", "01", "+1", "0x1", "'x'", "undefined", '"\t"', '"\\x"', "[1,]", "/**/1", "--1", ".5", '"', "tru"),
    *("[" * 70 + "]" * 70, '{"a":' * 70 + "1" + "}" * 70, "[" * 2000),
)
"""What stands for a value, as it is written: not all of it is JSON."""
_MARK = "\u2603literal\u2603"


class Mutations:
    """Spoilt bodies of the routes that an OpenAPI document describes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self._bodies = {
            path: document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            for path in VALID
        }

    def body(self, number: int) -> tuple[str, bytes]:
        """A path and a body for it, always the same for one number."""
        rng = random.Random(number)
        path = rng.choice(list(VALID))
        fields = json.loads(json.dumps(VALID[path]))
        literal = ""
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            place = self._place(rng, self._bodies[path])
            value, literal_here = self._value(rng, self._at(place, self._bodies[path]))
            literal = literal_here or literal
            _put(fields, place, value, rng)
        if path in STREAMED and rng.random() < 0.5:
            fields.setdefault("stream", True)
        return path, _spoilt(rng, _written(fields, literal))

    def _place(self, rng: random.Random, schema: Schema) -> Place:
        """Where a value stands: a field, or something inside one."""
        place: list[str | int] = []
        for _ in range(4):
            inner = list(self._inner(schema))
            if not inner:
                break
            step, schema = rng.choice(inner)
            place.append(step)
            if rng.random() < 0.5:
                break
        return tuple(place)

    def _inner(self, schema: Schema) -> Iterator[tuple[str | int, Schema]]:
        for form in self._forms(schema):
            yield from form.get("properties", {}).items()
            if "items" in form:
                yield 0, form["items"]

    def _forms(self, schema: Schema) -> Iterator[Schema]:
        if "$ref" in schema:
            yield from self._forms(self._schemas[schema["$ref"].rpartition("/")[2]])
            return
        for form in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
            yield from self._forms(form)
        yield schema

    def _at(self, place: Place, schema: Schema) -> Schema:
        for step in place:
            schema = next((inner for name, inner in self._inner(schema) if name == step), {})
        return schema

    def _value(self, rng: random.Random, schema: Schema) -> tuple[Any, str]:
        """A hostile value, and how it is written where JSON has no word for it."""
        draw = rng.random()
        if draw < 0.12:
            return _MARK, rng.choice(LITERALS)
        if draw < 0.45:
            return self._near(rng, schema), ""
        kinds = ((NUMBERS, 4), (TEXTS, 4), (OTHERS, 3), (HUGE, 1))
        chosen = rng.choices([values for values, _ in kinds], [weight for _, weight in kinds])[0]
        return rng.choice(chosen), ""

    def _near(self, rng: random.Random, schema: Schema) -> Any:
        """A value of the right kind, or nearly."""
        form = rng.choice(list(self._forms(schema)))
        if "enum" in form or "const" in form:
            return rng.choice([*form.get("enum", ()), form.get("const"), "other", "", 0])
        match form.get("type"):
            case "integer" | "number":
                limits = [
                    form[name] + more for name in ("minimum", "maximum") if name in form for more in (-1, 0, 1)
                ]
                return rng.choice([*limits, *NUMBERS])
            case "boolean":
                return rng.choice([True, False, "true", 0, 1, None])
            case "array":
                return [self._near(rng, form.get("items", {})) for _ in range(rng.choice([0, 1, 2, 3, 40]))]
            case "object":
                names = list(form.get("properties", {}))
                kept = rng.sample(names, min(len(names), rng.randint(0, 4)))
                return {name: self._near(rng, form["properties"][name]) for name in kept}
        return rng.choice(TEXTS)


STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


def _put(fields: Any, place: Place, value: Any, rng: random.Random) -> None:
    """Put a value where it belongs, making the way to it; sometimes the field is taken away instead."""
    if not place:
        return
    *way, last = place
    for step, following in zip(way, place[1:], strict=True):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(fields, list):
            if not fields:
                fields.append(empty)
            step = 0
        elif step not in fields or not isinstance(fields[step], list | dict):
            fields[step] = empty
        if not isinstance(fields[step], list if isinstance(following, int) else dict):
            fields[step] = empty
        fields = fields[step]
    if isinstance(fields, list):
        fields[:1] = [value]
    elif rng.random() < 0.05:
        fields.pop(last, None)
    else:
        fields[last] = value


def _written(fields: Any, literal: str) -> bytes:
    text = json.dumps(fields, ensure_ascii=False)
    return text.replace(f'"{_MARK}"', literal).encode()


def _spoilt(rng: random.Random, body: bytes) -> bytes:
    """Sometimes the bytes themselves are spoilt."""
    draw = rng.random()
    if draw > 0.12:
        return body
    at = rng.randrange(len(body))
    return rng.choice(
        [
            body[:at],
            body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :],
            body[:at] + body[at:] * 2,
            b"\xef\xbb\xbf" + body,
            body.decode("utf-8", "replace").encode("utf-16"),
            body[:-1] + b"," + body[1:],
            body[:-1] + b',"model":"x","model":null,"model":5}',
            b" " * 5000 + body + b"\n" * 5000,
            b"[" + body + b"]",
            body + body,
        ]
    )
