"""API keys: every path that is not public needs one, decided at the edge on the path that will be routed."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.errors import ApiError
from vllm_obs.server.public_paths import PUBLIC, route_path

PREFIX = b"Bearer "


class Authentication:
    """Lets a request through when its one Authorization header is `Bearer KEY` with a known key.

    Keys are kept and compared as SHA-256 digests, all of them each time: neither their length nor which one
    nearly fits can be timed. All failures look the same.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]) -> None:
        self.app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "http" and self._digests and route_path(scope) not in PUBLIC:
            presented = [value for name, value in scope["headers"] if name == b"authorization"]
            if not self._is_known(presented):
                raise ApiError("a valid API key is required: Authorization: Bearer KEY", "unauthorized")
        await self.app(scope, receive, send)

    def _is_known(self, presented: list[bytes]) -> bool:
        if len(presented) != 1 or not presented[0].startswith(PREFIX):
            return False
        digest = hashlib.sha256(presented[0][len(PREFIX) :]).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)
