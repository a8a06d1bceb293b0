"""What a client wants its reply to match goes to the engine as a grammar, whichever field said it."""

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.engine.structured.params import StructuredOutputsParams

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HI = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 4}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
BLANK_FREE = {"json": SCHEMA, "disable_any_whitespace": True}


async def ask(path: str, fields: dict[str, Any]) -> str:
    """The grammar that the engine was given."""
    engine = FakeEngine(lambda request: [2])
    async with served(engine) as app:
        reply = await app.post(path, {**HI, **fields})
        assert reply.status_code == 200, reply.text
    (sequence,) = engine.added
    return sequence.sampling.grammar


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputsParams(json=SCHEMA)),
        ({"structured_outputs": BLANK_FREE}, StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputsParams(choice=["a", "b"])),
        ({"structured_outputs": {"json_object": True}}, StructuredOutputsParams(json_object=True)),
        ({"guided_json": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
        ({"guided_choice": ["a"]}, StructuredOutputsParams(choice=["a"])),
        ({"guided_grammar": 'start: "a"'}, StructuredOutputsParams(grammar='start: "a"')),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        ({"response_format": TAG}, StructuredOutputsParams(structural_tag=TAG)),
        ({"structured_outputs": {"structural_tag": TAG}}, StructuredOutputsParams(structural_tag=TAG)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            StructuredOutputsParams(json=SCHEMA),
        ),
    ],
)
def test_every_field_leads_to_its_grammar(
    path: str, fields: dict[str, Any], params: StructuredOutputsParams
) -> None:
    assert asyncio.run(ask(path, fields)) == params.grammar_text()


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_plain_text_has_no_grammar(fields: dict[str, Any]) -> None:
    assert asyncio.run(ask(CHAT, fields)) == ""
