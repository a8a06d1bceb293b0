"""The key that a request carries decides its account, at the edge and down to the record of its sequences."""

import asyncio

import pytest
from fake_engine import FakeEngine
from http_app import served
from starlette.types import Message, Receive, Scope, Send

from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.auth import Authentication
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.errors import ApiError
from vllm_obs.telemetry.records import RequestSubmitted

KEYS = ("first", "second", "third")


def account_seen(header: bytes, keys: tuple[str, ...] = KEYS, path: str = "/v1/models") -> str | None:
    """The account in the state behind the layer; None where it put none there."""
    seen: list[str | None] = []

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"].get("account"))

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "http", "path": path, "root_path": "", "headers": [(b"authorization", header)], "state": {}}
    server = ServerConfig(api_keys=keys, api_key_names=("", "batch", "")[: len(keys)])
    asyncio.run(Authentication(inside, ApiKeys(server.names_by_key))(scope, receive, send))
    return seen[0]


@pytest.mark.parametrize(("key", "account"), [("first", "key-1"), ("second", "batch"), ("third", "key-3")])
def test_the_key_that_fits_gives_the_account(key: str, account: str) -> None:
    assert account_seen(b"Bearer " + key.encode()) == account


def test_a_public_path_and_a_server_without_keys_have_none() -> None:
    assert account_seen(b"Bearer first", path="/health") is None
    assert account_seen(b"Bearer first", keys=()) is None


def test_a_wrong_key_has_no_account() -> None:
    with pytest.raises(ApiError, match="a valid API key is required"):
        account_seen(b"Bearer fourth")


def test_the_record_of_a_sequence_carries_the_account_and_nothing_of_the_key() -> None:
    async def main() -> list[RequestSubmitted]:
        server = ServerConfig(api_keys=KEYS, api_key_names=("", "batch", ""))
        async with served(FakeEngine(lambda request: [30] * 2), server) as app:
            for key in ("second", "third"):
                reply = await app.client.post(
                    "/v1/completions",
                    json={"prompt": "Hi", "max_tokens": 2},
                    headers={"authorization": f"Bearer {key}"},
                )
                assert reply.status_code == 200
            return app.recorder.of(RequestSubmitted)

    records = asyncio.run(main())
    assert [record.account for record in records] == ["batch", "key-3"]
    assert not any(key in repr(record) for key in KEYS for record in records)
