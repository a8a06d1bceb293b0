"""The layers around the routes: ids, keys, origins, phases, paths."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import MODEL, Served, served
from starlette.routing import Route

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.public_paths import PROBES, PUBLIC
from vllm_obs.server.request_id import client_label

TEXT = "/v1/completions"
KEYS = ServerConfig(api_keys=("s3cret", "second"))


def run(
    scenario: Callable[[Served], Coroutine[Any, Any, Any]], server: ServerConfig | None = None, ready: bool = True
) -> Any:
    async def main() -> Any:
        async with served(FakeEngine(lambda request: [30] * 4), server, ready) as app:
            return await scenario(app)

    return asyncio.run(main())


def get(path: str, server: ServerConfig | None = None, method: str = "GET", **request: Any) -> httpx.Response:
    async def scenario(app: Served) -> httpx.Response:
        return await app.client.request(method, path, **request)

    reply: httpx.Response = run(scenario, server)
    return reply


def test_every_route_needs_a_key_but_probes_and_metrics() -> None:
    async def scenario(app: Served) -> None:
        walked = set()
        for path, methods in routes_of(app):
            for method in methods:
                reply = await app.client.request(method, path.replace("{model_id:path}", MODEL))
                is_open = path in PUBLIC
                assert (reply.status_code != 401) == is_open, (method, path, reply.status_code)
                walked.add(path)
        assert walked >= {
            TEXT,
            "/v1/chat/completions",
            "/v1/models",
            "/tokenize",
            "/openapi.json",
            "/docs",
            *PROBES,
        }
        for path in (
            "/nothing",
            "/v1",
            "/health/",
            "/HEALTH",
            "/healthz",
            "/metrics/",
        ):
            assert (await app.client.get(path)).status_code == 401, path
        assert (await app.client.get("/metrics")).status_code == 503

    run(scenario, KEYS)


def routes_of(app: Served) -> list[tuple[str, set[str]]]:
    """Every path with its methods, as the OpenAPI document and the application's own routes give them."""
    documented = {path: {m.upper() for m in methods} for path, methods in app.app.openapi()["paths"].items()}
    own = {route.path: set(route.methods or ()) for route in app.app.routes if isinstance(route, Route)}
    return list(itertools.chain(documented.items(), own.items()))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b"Bearer wrong"],
        [b"Bearer s3cre"],
        [b"Bearer s3crett"],
        [b"Bearer " + b"x" * 1_000_000],
        [b"Bearer s3cret", b"Bearer s3cret"],
        [b"Bearer s3cret", b"Bearer wrong"],
        [b"Bearer \xff"],
        [b"\xff"],
        [b"bearer s3cret"],
        [b"Bearer s3cret "],
        [b"Bearer  s3cret"],
        [b"Basic s3cret"],
        [b"s3cret"],
        [b"Bearer"],
        [b""],
    ],
)
def test_all_bad_keys_get_the_same_401(values: list[bytes]) -> None:
    reply = get("/v1/models", KEYS, headers=[(b"authorization", value) for value in values])
    assert reply.status_code == 401
    assert reply.json() == get("/v1/nothing", KEYS).json()
    assert reply.json()["error"]["reason"] == "unauthorized"
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("key", ["s3cret", "second"])
def test_known_keys_are_let_in(key: str) -> None:
    assert get("/v1/models", KEYS, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_keys_hold_behind_a_root_path() -> None:
    server = ServerConfig(api_keys=("s3cret",), root_path="/api")
    key = {"authorization": "Bearer s3cret"}
    assert get("/api/health", server).status_code == 200
    assert get("/health", server).status_code == 200
    assert get("/api/v1/models", server).status_code == 401
    assert get("/api/v1/models", server, headers=key).status_code == 200
    assert get("/api/api/health", server).status_code == 401
    assert get("/apihealth", server).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/%2fv1/models", "/v1/models/", "/V1/models", "/v1/models;x", "/v1/chat"],
)
def test_other_spellings_of_a_path_are_404_without_redirect(path: str) -> None:
    reply = get(path, headers={"host": "evil.example"})
    assert reply.status_code == 404
    assert "location" not in reply.headers
    assert reply.json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize("path", ["/pause", "/sleep", "/start_profile", "/reset_prefix_cache", "/load"])
def test_admin_routes_are_not_there(path: str) -> None:
    for method in ("GET", "POST"):
        reply = get(path, method=method)
        assert (reply.status_code, reply.json()["error"]["reason"]) == (404, "not_found")


def test_wrong_method_is_405_in_the_one_shape() -> None:
    reply = get(TEXT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"] == {
        "message": "this path does not take GET",
        "type": "MethodNotAllowedError",
        "param": None,
        "code": 405,
        "reason": "method_not_allowed",
    }


def test_models_are_listed_and_found_with_their_slash() -> None:
    listed = get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert listed["data"][0]["max_model_len"] == 2048
    assert get(f"/v1/models/{MODEL}").json()["id"] == MODEL
    missing = get("/v1/models/nope/nope")
    assert (missing.status_code, missing.json()["error"]["reason"]) == (404, "model_not_found")


def test_request_id_of_the_client_is_its_label_everywhere() -> None:
    reply = get(TEXT, method="POST", json={"prompt": "Hi"}, headers={"x-request-id": "abc-123"})
    assert (reply.headers["x-request-id"], reply.json()["id"]) == ("abc-123", "cmpl-abc-123")
    refused = get(TEXT, method="POST", json={"prompt": ""}, headers={"x-request-id": "abc-124"})
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "abc-124")


def test_two_requests_under_one_label_both_finish() -> None:
    async def scenario(app: Served) -> list[httpx.Response]:
        body = {"prompt": "Hi"}
        posts = [app.client.post(TEXT, json=body, headers={"x-request-id": "same"}) for _ in range(2)]
        return list(await asyncio.gather(*posts))

    replies = run(scenario)
    assert [reply.status_code for reply in replies] == [200, 200]
    assert {reply.json()["id"] for reply in replies} == {"cmpl-same"}


@pytest.mark.parametrize(
    ("sent", "label"),
    [
        (b"x" * 10_000, "x" * 128),
        (b"a\r\nset-cookie: b", "aset-cookie:b"),
        (b"1.2.3.4:5", "1.2.3.4:5"),
        ("grün".encode(), "grn"),
        (b"\xff\x00", ""),
    ],
)
def test_label_is_printable_and_short(sent: bytes, label: str) -> None:
    assert client_label([(b"x-request-id", sent)]) == label


def test_own_ids_differ_where_the_client_sent_none() -> None:
    assert get("/health").headers["x-request-id"] != get("/health").headers["x-request-id"]


PREFLIGHT = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def test_preflight_needs_no_key_and_allows_the_headers() -> None:
    reply = get("/v1/chat/completions", KEYS, "OPTIONS", headers=PREFLIGHT)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "authorization" in reply.headers["access-control-allow-headers"]
    assert reply.headers["x-request-id"]


def test_replies_and_errors_name_the_allowed_origin_once() -> None:
    for path, status in (("/v1/models", 200), ("/nothing", 404)):
        reply = get(path, headers={"origin": "https://app.example"})
        assert (reply.status_code, reply.headers.get_list("access-control-allow-origin")) == (status, ["*"])
    assert "access-control-allow-origin" not in get("/v1/models").headers


def test_only_allowed_origins_are_named() -> None:
    server = ServerConfig(allowed_origins=("https://app.example",), allow_credentials=True)
    reply = get("/v1/models", server, headers={"origin": "https://app.example"})
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert reply.headers["access-control-allow-credentials"] == "true"
    foreign = get("/v1/models", server, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers
    refused = get(TEXT, server, "OPTIONS", headers={**PREFLIGHT, "origin": "https://evil.example"})
    assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "forbidden")


async def statuses(app: Served) -> dict[str, int]:
    paths = ["/health", "/ping", "/livez", "/readyz", "/startupz", "/version", "/v1/models"]
    return {path: (await app.client.get(path)).status_code for path in paths}


def test_loading_server_answers_probes_and_refuses_the_rest() -> None:
    async def scenario(app: Served) -> None:
        expected = dict.fromkeys(await statuses(app), 503) | {"/livez": 200, "/version": 200}
        assert await statuses(app) == expected
        reply = await app.post(TEXT, {"prompt": "Hi"})
        assert (reply.status_code, reply.json()["error"]["reason"]) == (503, "not_ready")
        assert reply.headers["retry-after"]

    run(scenario, ready=False)


def test_ready_server_answers_all_and_ping_by_post() -> None:
    async def scenario(app: Served) -> None:
        assert set((await statuses(app)).values()) == {200}
        assert (await app.client.post("/ping")).status_code == 200
        assert (await app.client.get("/health")).content == b""
        assert list((await app.client.get("/version")).json()) == ["version"]

    run(scenario)


def test_draining_server_is_alive_but_not_ready() -> None:
    async def scenario(app: Served) -> None:
        app.api.drain()
        expected = dict.fromkeys(await statuses(app), 200) | {"/readyz": 503, "/v1/models": 503}
        assert await statuses(app) == expected
        reply = await app.post(TEXT, {"prompt": "Hi"})
        assert (reply.status_code, reply.json()["error"]["reason"]) == (503, "shutting_down")
        assert (reply.headers["connection"], reply.headers["retry-after"]) == ("close", "2")

    run(scenario)


def test_dead_engine_fails_every_probe() -> None:
    async def scenario(app: Served) -> None:
        app.engine.die("killed by signal 9")
        await app.llm.wait_dead()
        expected = dict.fromkeys(await statuses(app), 503) | {"/version": 200}
        assert await statuses(app) == expected
        reply = await app.post(TEXT, {"prompt": "Hi"})
        assert (reply.status_code, reply.json()["error"]["reason"]) == (503, "engine_dead")

    run(scenario)


def test_waiting_request_gets_a_500_when_the_engine_dies() -> None:
    async def scenario(app: Served) -> httpx.Response:
        app.engine.go.clear()
        waiting = asyncio.create_task(app.post(TEXT, {"prompt": "Hi"}))
        while not app.engine.added:
            await asyncio.sleep(0.01)
        app.engine.die("killed by signal 9")
        return await waiting

    reply = run(scenario)
    assert (reply.status_code, reply.json()["error"]["reason"]) == (500, "engine_dead")


def test_openapi_describes_bodies_and_errors() -> None:
    document = get("/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}
    assert {"messages", "temperature", "max_tokens"} <= document["components"]["schemas"]["ChatCompletionRequest"][
        "properties"
    ].keys()
    assert {"200", "400", "401", "404", "500", "503"} <= operation["responses"].keys()
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    assert unresolved(document, document) == []


def unresolved(node: Any, document: Any) -> list[str]:
    """References of the document that lead nowhere."""
    if isinstance(node, list):
        return [missing for item in node for missing in unresolved(item, document)]
    if not isinstance(node, dict):
        return []
    missing = [missing for item in node.values() for missing in unresolved(item, document)]
    reference = node.get("$ref")
    if isinstance(reference, str):
        target = document
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part, {})
        missing += [] if target else [reference]
    return missing


def test_documents_can_be_switched_off() -> None:
    server = ServerConfig(disable_fastapi_docs=True)
    for path in ("/openapi.json", "/docs", "/redoc"):
        assert get(path, server).status_code == 404
