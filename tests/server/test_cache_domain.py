"""No key shares prefix-cache blocks with another, and each does with itself."""

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served

from vllm_obs.server.cache_domain import cache_domain
from vllm_obs.server.config import ServerConfig

TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "Hi", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    RESPONSES: {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}


def salts(server: ServerConfig, *asked: tuple[str, str, str | None]) -> list[str | None]:
    """What the engine was given for each (path, key, the client's own salt)."""

    async def main() -> list[str | None]:
        engine = FakeEngine(lambda request: [30])
        async with served(engine, server) as app:
            for path, key, salt in asked:
                body = BODIES[path] | ({} if salt is None else {"cache_salt": salt})
                body["model"] = MODEL
                reply = await app.post(path, body, authorization=f"Bearer {key}")
                assert reply.status_code == 200, reply.text
            return [request.cache_salt for request in engine.added]

    return asyncio.run(main())


@pytest.mark.parametrize("path", list(BODIES))
def test_two_keys_never_share_and_one_shares_with_itself(path: str) -> None:
    server = ServerConfig(api_keys=("one", "two"))
    mine, again, other = salts(server, (path, "one", None), (path, "one", None), (path, "two", None))
    assert None not in (mine, other)
    assert (mine == again, mine == other) == (True, False)


def test_a_clients_own_salt_divides_its_keys_domain_and_leads_into_no_other() -> None:
    server = ServerConfig(api_keys=("one", "two"))
    asked = [("one", None), ("one", "s"), ("one", "s"), ("one", "t"), ("two", "s")]
    bare, salted, again, differently, other = salts(server, *((TEXT, key, salt) for key, salt in asked))
    assert salted == again
    assert len({bare, salted, differently, other}) == 4
    assert bare is not None
    assert not bare.isascii()  # and cache_salt is: no client can write another's domain


def test_keys_with_one_name_share() -> None:
    server = ServerConfig(api_keys=("one", "two", "three"), api_key_names=("team", "team", ""))
    one, two, three = salts(server, *((TEXT, key, None) for key in server.api_keys))
    assert one == two != three


def test_one_key_or_none_needs_no_salt() -> None:
    for server in (ServerConfig(), ServerConfig(api_keys=("one",))):
        assert salts(server, (TEXT, "one", None), (TEXT, "one", "mine")) == [None, "mine"]


def test_an_owner_and_a_salt_are_not_taken_for_another_owner() -> None:
    assert cache_domain("name:a", "b") != cache_domain("name:ab", None)
    assert cache_domain("name:a", "") != cache_domain("name:a", None)
    assert cache_domain("", "s") == "s"
