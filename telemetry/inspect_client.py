"""Inspector: asks the inspector API of one run over HTTP."""

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

TIMEOUT_SECONDS = 10.0
MAX_REPLY_BYTES = 64 << 20
MAX_SHOWN = 64
BAD_REQUEST = 400


class InspectorError(Exception):
    """The inspector API cannot be reached, or refused what was asked with that HTTP `status`."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Inspector(NamedTuple):
    """Where one inspector API is, and of which run."""

    url: str
    run: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def words(self) -> str:
        """How people are told of it."""
        return f"run {self.run} at {self.url}"

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at `path`. Raises InspectorError."""
        return self.fetch(path, **query).content

    def fetch(self, path: str, **query: Any) -> "Fetched":
        """The same, with its length. Raises InspectorError."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Any) -> Any:
        """The JSON that an order in JSON is answered with. Raises InspectorError."""
        return self._ask("POST", path, json.dumps(body).encode()).content

    def _ask(self, method: str, target: str, content: bytes | None = None) -> "Fetched":
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=self.timeout_seconds
        )
        try:
            kind = {} if content is None else {"content-type": "application/json"}
            _ask_for(connection, method, target, content, kind)
            reply = connection.getresponse()
            body = reply.read(MAX_REPLY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise InspectorError(f"the inspector at {self.url} does not answer: {_plain(error)}") from None
        finally:
            connection.close()
        return Fetched(_content(body, reply.status, self.url), len(body))


class Fetched(NamedTuple):
    """The JSON that was answered, and how many bytes it came in."""

    content: Any
    num_bytes: int


def _ask_for(
    connection: http.client.HTTPConnection, method: str, target: str, content: bytes | None, kind: dict[str, str]
) -> None:
    try:
        connection.request(method, target, content, kind)
    except (ValueError, http.client.InvalidURL):
        # It has signs that no address can have, so nobody was asked.
        raise InspectorError(f"{target[:MAX_SHOWN]!a} is no path of an inspector", BAD_REQUEST) from None


def _content(body: bytes, status: int, url: str) -> Any:
    try:
        content = json.loads(body)
    except ValueError:
        raise InspectorError(
            f"what answers at {url} is no inspector of vllm-obs (status {status})", status
        ) from None
    if status != 200:
        error = content.get("error") if isinstance(content, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise InspectorError(str(message or f"status {status}"), status)
    return content


def _plain(error: Exception) -> str:
    """What the system says of it, without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
