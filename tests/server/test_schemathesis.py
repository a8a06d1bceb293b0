"""Requests made from our own OpenAPI document: no 5xx, and no reply that the document does not describe."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from fake_engine import FakeEngine
from http_app import MODEL, Served, served
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

MESSAGES = [{"role": "user", "content": "Hi"}]
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/completions/render": {"prompt": "Hi", "max_tokens": 4},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES], "max_tokens": 4},
    "/v1/chat/completions/render": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4, "model": MODEL},
    "/v1/messages/count_tokens": {"messages": MESSAGES, "model": MODEL},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4, "model": MODEL},
    "/v1/responses/input_tokens": {"input": "Hi", "model": MODEL},
    "/v1/embeddings": {"input": "Hi"},
    "/score": {"text_1": "Hi", "text_2": "Ho"},
    "/v1/score": {"text_1": "Hi", "text_2": "Ho"},
    "/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/v1/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/v2/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [504]},
}
"""A body that each route takes: generated fields are put into it, since whole generated bodies get no further
than the first field that is wrong."""

NO_ENGINE = "/metrics"
"""Its maker is a process of its own, which does not run here."""


@dataclass
class Fuzzed:
    """The application in this process, with its document."""

    runner: asyncio.Runner
    app: Served
    document: dict[str, Any]

    def send(self, method: str, path: str, query: dict[str, Any], body: Any) -> httpx.Response:
        """The reply; `body` None is none."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        request = self.app.client.request(method, path, params=query, content=content, headers=headers)
        return self.runner.run(asyncio.wait_for(request, 20))

    def check(self, name: str, reply: httpx.Response) -> None:
        """Fail where the reply is none of those that the document has for the route."""
        path, method = name.split(" ")[1], name.split(" ")[0].lower()
        answers = self.document["paths"][path][method]["responses"]
        assert reply.status_code < 500, reply.text
        assert str(reply.status_code) in answers, (reply.status_code, reply.text)
        content = answers[str(reply.status_code)].get("content", {})
        if not content and not reply.content:
            return
        kind = reply.headers["content-type"].partition(";")[0]
        assert kind in content, kind
        if kind == "text/event-stream":
            assert all(json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {"))
            return
        schema = {**content[kind]["schema"], "components": self.document["components"]}
        jsonschema_rs.validator_for(schema).validate(reply.json())


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with asyncio.Runner() as runner:
        context = served(FakeEngine(lambda request: [504, 3575, 282, 2]))
        app = runner.run(context.__aenter__())
        document = runner.run(app.client.get("/openapi.json")).json()
        yield Fuzzed(runner, app, document)
        runner.run(context.__aexit__(None, None, None))


def operations() -> list[str]:
    return [f"POST {path}" for path in VALID] + [
        "GET /v1/responses/{response_id}",
        "GET /v1/responses/{response_id}/input_items",
        "DELETE /v1/responses/{response_id}",
        "POST /v1/responses/{response_id}/cancel",
        "POST /v1/responses/compact",
        "GET /v1/models",
        "GET /v1/models/{model_id}",
        "GET /ping",
        "POST /ping",
        "GET /health",
        "GET /livez",
        "GET /startupz",
        "GET /readyz",
        "GET /version",
    ]


def test_every_route_of_the_document_is_tried(fuzzed: Fuzzed) -> None:
    paths = fuzzed.document["paths"]
    known = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    assert known - {f"GET {NO_ENGINE}"} == set(operations())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_examples", [3, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", operations())
def test_generated_requests_get_replies_of_the_document(name: str, num_examples: int, fuzzed: Fuzzed) -> None:
    method, path = name.split(" ")
    operation = schemathesis.openapi.from_dict(fuzzed.document)[path][method.lower()]
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if path in VALID:
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, data=st.data())
    def send(case: Any, data: st.DataObject) -> None:
        body = None
        if path in VALID:
            body = case.body
            if isinstance(body, dict) and body and data.draw(st.booleans()):
                kept = data.draw(st.lists(st.sampled_from(sorted(body)), max_size=2))
                body = VALID[path] | {field: body[field] for field in kept}
        fuzzed.check(name, fuzzed.send(method, case.formatted_path, case.query or {}, body))

    send()
