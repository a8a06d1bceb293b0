"""What the compiler is given of a schema allows nothing that the schema itself does not."""

from typing import Any

import pytest

from vllm_obs.engine.structured.schema_form import compilable

TEXT = {"type": "string"}
CLOSED = {"additionalProperties": False}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {**of(a=TEXT), "additionalProperties": True},
        {**of(a=TEXT), "additionalProperties": TEXT},
        {**of(a=TEXT), "patternProperties": {"^x": TEXT}},
        {**of(a=TEXT), "minProperties": 2},
        {**of(a=TEXT), "required": ["a", "b"]},
        {**of(a=TEXT), "required": "a"},
        {"properties": ["a"]},
        {"allOf": [of(a=TEXT), of(b=TEXT)]},
        {**of(a=TEXT), "anyOf": [of(b=TEXT), of(c=TEXT)]},
        {"$defs": {"a": of(a=TEXT)}, **of(b=TEXT), "$ref": "#/$defs/a"},
        {"type": "object", "required": ["id"], "oneOf": [of(a=TEXT), of(b=TEXT)]},
        {"additionalProperties": True, "anyOf": [of(a=TEXT), of(b=TEXT)]},
        {"minProperties": 2, "anyOf": [of(a=TEXT), of(b=TEXT)]},
        {"$defs": {"A": of(a=TEXT)}, "$ref": "#/$defs/A", "required": ["extra"]},
        {"type": "array", "items": {"patternProperties": {"^x": TEXT}, "anyOf": [of(a=TEXT), of(b=TEXT)]}},
        {"enum": [of(a=TEXT), {"format": "color"}]},
        {"const": {"properties": {}}},
        {"type": "string", "format": "date"},
        {"type": "integer", "format": 5},
        {"properties": {"format": TEXT}, **CLOSED},
    ],
)
def test_these_are_left_as_they_are(schema: dict[str, Any]) -> None:
    assert compilable(schema) == schema


def test_objects_that_name_their_properties_have_no_others() -> None:
    person = {
        **of(name=TEXT, friends={"type": "array", "items": {"$ref": "#/$defs/person"}}),
        "required": ["name"],
    }
    given = {"$defs": {"person": person}, "anyOf": [{"$ref": "#/$defs/person"}, of(), {"type": "null"}]}
    assert compilable(given) == {
        "$defs": {"person": {**person, **CLOSED}},
        "anyOf": [{"$ref": "#/$defs/person"}, {**of(), **CLOSED}, {"type": "null"}],
    }


def test_a_format_that_is_not_known_is_an_annotation() -> None:
    given = of(
        format={"type": "string", "format": "color"}, at={"type": ["string", "null"], "format": "date-time"}
    )
    kept = of(format=TEXT, at={"type": ["string", "null"], "format": "date-time"})
    assert compilable(given) == {**kept, **CLOSED}
