"""Schemas that hold a text to many patterns at once are refused before the compiler sees them."""

import json
import time
from typing import Any

import pytest
from llguidance import StructTag

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured.grammar_text import json_grammar, lark_text, tag_grammar
from vllm_obs.engine.structured.schema_intersections import MAX_INTERSECTED, most_intersected

PATTERNS = [{"pattern": f"(.*{chr(97 + index)}.*)|(.{{{7 * index + 3}}})"} for index in range(20)]
EVIL = {"type": "string", "allOf": PATTERNS}


def chain(length: int) -> dict[str, Any]:
    """Definitions of which each adds a pattern to the next."""
    definitions = {
        f"d{index}": {"allOf": [{"pattern": f"a{index}"}, {"$ref": f"#/$defs/d{index + 1}"}]}
        for index in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"type": "string"}, 0),
        ({"pattern": "a", "format": "email", "minLength": 1, "maxLength": 9}, 3),
        (EVIL, 20),
        ({"properties": {"a": {"items": EVIL}}}, 20),
        ({"anyOf": PATTERNS}, 1),
        ({"properties": {f"p{index}": part for index, part in enumerate(PATTERNS)}}, 1),
        ({"allOf": [{"properties": {"p": part}} for part in PATTERNS]}, 20),
        ({"$defs": {"unused": EVIL}}, 0),
        ({"$defs": {"used": EVIL}, "items": {"$ref": "#/$defs/used"}}, 20),
        ({"$id": "x:y", "$defs": {"used": EVIL}, "$ref": "x:y#/$defs/used"}, 20),
        ({"allOf": [{"$ref": "#"}, {"pattern": "a"}]}, 1),
        ({"pattern": "a", "properties": {"child": {"$ref": "#"}}}, 1),
        ({"$ref": 5, "enum": [EVIL], "properties": {"pattern": {}}}, 0),
        (chain(5000), 5000),
    ],
)
def test_conditions_on_one_text_are_counted(schema: dict[str, Any], most: int) -> None:
    assert most_intersected(schema) == most


@pytest.mark.parametrize(
    "make",
    [
        lambda: json_grammar(EVIL),
        lambda: lark_text(f"start: %json {json.dumps(EVIL)}"),
        lambda: tag_grammar([StructTag(trigger="<", begin="<a>", grammar=EVIL, end="</a>")]),
    ],
    ids=["schema", "in a Lark grammar", "in a tag"],
)
def test_more_than_may_be_are_refused_at_once(make: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(RequestError, match=f"20 patterns, formats and lengths at once; at most {MAX_INTERSECTED}"):
        make()
    assert time.monotonic() - begun < 3.0


def test_as_many_as_may_be_are_let_through() -> None:
    assert json_grammar({"type": "string", "allOf": PATTERNS[:MAX_INTERSECTED]})
