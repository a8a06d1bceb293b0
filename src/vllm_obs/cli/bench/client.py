"""A client of one server: its address, its headers, and a pool of kept connections."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from vllm_obs.cli.bench.connection import Connection, ConnectionLostError, Reply
from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.engine.errors import ConfigError, VllmObsError

CONNECT_TIMEOUT_SECONDS = 10.0
GET_TIMEOUT_SECONDS = 10.0


class ServerUnreachableError(VllmObsError):
    """There is nothing to measure at the address."""


class BenchClient:
    """Posts completions. Connections are kept and used again; one that went stale is replaced once."""

    def __init__(self, options: BenchOptions, environ: Mapping[str, str] = os.environ) -> None:
        parts = urlsplit(options.url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path + options.endpoint
        self._models_path = parts.path + "/v1/models"
        self._headers = _header_lines(options, parts.netloc, environ)
        self._timeout_seconds = options.request_timeout
        self._idle: list[Connection] = []

    async def complete(self, body: Mapping[str, Any]) -> Reply:
        """Post a completion. Raises OSError or TimeoutError."""
        payload = orjson.dumps(body)
        head = f"POST {self._path} HTTP/1.1\r\n{self._headers}content-length: {len(payload)}\r\n\r\n"
        async with asyncio.timeout(self._timeout_seconds):
            return await self._exchange(head.encode("latin-1") + payload)

    async def first_model(self) -> str:
        """The name of the first model that the server offers. Raises ServerUnreachableError."""
        request = f"GET {self._models_path} HTTP/1.1\r\n{self._headers}accept-encoding: identity\r\n\r\n"
        try:
            async with asyncio.timeout(GET_TIMEOUT_SECONDS):
                reply = await self._exchange(request.encode("latin-1"), keep_body=True)
            if reply.status != 200:
                raise ServerUnreachableError(
                    f"{self._models_path} answered {reply.status}: {describe_failure(reply)}"
                )
            return str(orjson.loads(reply.body)["data"][0]["id"])
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise ServerUnreachableError(f"no server at {self._host}:{self._port}: {reason}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ServerUnreachableError(f"{self._models_path} did not answer with a list of models") from error

    async def wait_until_ready(self, timeout_seconds: float) -> str:
        """The first model's name, as soon as the server says it; at once or never if the timeout is 0."""
        deadline = time.monotonic_ns() + round(timeout_seconds * 1e9)
        while True:
            try:
                return await self.first_model()
            except ServerUnreachableError:
                if time.monotonic_ns() >= deadline:
                    raise
            await asyncio.sleep(0.2)

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, request: bytes, keep_body: bool = False) -> Reply:
        connection, is_new = await self._connection()
        try:
            try:
                reply = await connection.post(request, keep_body)
            except ConnectionLostError as error:
                if is_new or error.began:
                    raise
                connection = await self._connect()
                reply = await connection.post(request, keep_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    async def _connection(self) -> tuple[Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, False
        return await self._connect(), True

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return connection


def _header_lines(options: BenchOptions, netloc: str, environ: Mapping[str, str]) -> str:
    headers = {"host": netloc.rpartition("@")[2], "content-type": "application/json", "accept": "*/*"}
    if key := environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    for word in options.header:
        name, equals, value = word.partition("=")
        if not name or not equals or not (name + value).isprintable():
            raise ConfigError(f"--header {word[:64]!r} is not NAME=VALUE")
        headers[name.lower()] = value
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def describe_failure(reply: Reply) -> str:
    """Why a reply is not a whole completion, in a few words; empty when it is one."""
    if reply.status != 200:
        return f"HTTP {reply.status}: {_message(reply.body)}"
    if reply.error:
        return reply.error[:200]
    return "" if reply.is_complete else "the stream ended without [DONE]"


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])[:200]
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace")
