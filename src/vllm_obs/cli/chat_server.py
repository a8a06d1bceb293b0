"""ChatServer: asks one OpenAI server over HTTP, with the standard library alone."""

import http.client
import json
import socket
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vllm_obs.cli.chat_address import VERSION_PATH, is_unix
from vllm_obs.engine.errors import ConfigError

CONNECT_SECONDS = 10.0
EVENT_SECONDS = 600.0
"""How long the next piece of a reply may take; a prompt may be long, and others wait before it."""
MAX_REPLY_BYTES = 1 << 20
MAX_EVENT_BYTES = 1 << 24
MAX_ERROR_CHARS = 500


class ServerError(Exception):
    """The server cannot be reached, or did not answer as asked."""


class ChatServer(NamedTuple):
    """Where the server is, and the key that it wants."""

    url: str
    key: str = ""

    def first_model(self) -> str:
        """The name of the first model it offers. Raises ServerError."""
        connection = self._connect()
        try:
            reply = self._send(connection, "GET", "/models")
            return str(json.loads(reply.read(MAX_REPLY_BYTES))["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ServerError(f"{self.url}/models did not answer with a list of models") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of a streamed reply as they come. Closing it ends the request. Raises ServerError."""
        connection = self._connect()
        try:
            reply = self._send(connection, "POST", path, {**body, "stream": True})
            yield from self._events(reply)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        connection = _connection(self.url)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"no server answers at {self.url}: {_words(error)}") from None
        connection.sock.settimeout(EVENT_SECONDS)
        return connection

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
    ) -> http.client.HTTPResponse:
        prefix = VERSION_PATH if is_unix(self.url) else urlsplit(self.url).path
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        content = None
        if body is not None:
            content, headers["content-type"] = json.dumps(body).encode(), "application/json"
        connection.request(method, prefix + path, content, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            body = reply.read(MAX_REPLY_BYTES)
            if reply.status == 404 and self._is_inspector():
                raise ServerError(f"what answers at {self.url} is a replay or an inspector: no model can be asked")
            if reply.status == 404 and not _is_openai_error(body):
                raise ServerError(f"what answers at {self.url} is not an OpenAI server: it has no {prefix + path}")
            raise ServerError(_refusal(body, reply.status))
        return reply

    def _is_inspector(self) -> bool:
        """Whether it is an inspector that answers there, such as that of a replay."""
        connection = self._connect()
        try:
            connection.request("GET", "/inspect/version")
            reply = connection.getresponse()
            return reply.status == 200 and "run" in json.loads(reply.read(MAX_REPLY_BYTES))
        except (OSError, http.client.HTTPException, ValueError, TypeError):
            return False
        finally:
            connection.close()

    def _events(self, reply: http.client.HTTPResponse) -> Generator[dict[str, Any], None, None]:
        while line := reply.readline(MAX_EVENT_BYTES):
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                return
            yield _event(payload)
        raise ServerError("the server ended the reply before it was whole")

    def _lost(self, error: Exception) -> ServerError:
        return ServerError(f"the server at {self.url} broke off: {_words(error)}")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT_SECONDS)
        self.sock.connect(self._path)


def _connection(url: str) -> http.client.HTTPConnection:
    if is_unix(url):
        return _UnixConnection(url.removeprefix("unix:"))
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)


def api_key(asked: str | None, environ: Mapping[str, str]) -> str:
    """The key that was given, else that of the environment, else none. ConfigError for one no header can hold."""
    key = asked or environ.get("VLLM_API_KEY") or environ.get("OPENAI_API_KEY") or ""
    if not key.isascii() or not (key.isprintable() or not key):
        raise ConfigError("the API key holds a character that no HTTP header may have")
    return key


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ServerError("the server sent an event that is not JSON")
    if error := event.get("error"):
        raise ServerError(_message(error))
    return event


def _is_openai_error(body: bytes) -> bool:
    """Whether an answer is an error of this API, such as that of a model that is not there."""
    try:
        return isinstance(json.loads(body)["error"], dict)
    except (ValueError, LookupError, TypeError):
        return False


def _refusal(body: bytes, status: int) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        error = f"status {status}"
    return _message(error)


def _message(error: Any) -> str:
    words = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(words).split())[:MAX_ERROR_CHARS]


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
