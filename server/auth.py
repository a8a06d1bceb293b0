"""API keys: every path that is not public needs one, decided at the edge on the path that will be routed."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.anthropic_paths import is_anthropic
from vllm_obs.server.errors import ApiError
from vllm_obs.server.public_paths import PUBLIC, route_path

PREFIX = b"Bearer "


class Authentication:
    """Lets a request through when its one Authorization header is `Bearer KEY` with a known key.

    On the paths of Anthropic's API one without that header may have the key as its one x-api-key header.
    Keys are kept and compared as SHA-256 digests, all of them each time: neither their length nor which one
    nearly fits can be timed. All failures look the same. `accounts` are parallel to the keys; the one of the key
    that fits is put into the state as `account` (empty without keys).
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], accounts: Sequence[str]) -> None:
        self.app = app
        digests = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        self._accounts = list(zip(digests, accounts, strict=True))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "http" and self._accounts and route_path(scope) not in PUBLIC:
            account = self._account_of(presented_keys(scope))
            if account is None:
                raise ApiError("a valid API key is required: Authorization: Bearer KEY", "unauthorized")
            scope["state"]["account"] = account
        await self.app(scope, receive, send)

    def _account_of(self, presented: list[bytes]) -> str | None:
        """The account of the one key presented, behind its prefix; None if that is no key of ours."""
        if len(presented) != 1 or not presented[0].startswith(PREFIX):
            return None
        digest = hashlib.sha256(presented[0][len(PREFIX) :]).digest()
        matches = [hmac.compare_digest(digest, known) for known, _ in self._accounts]
        return next((account for (_, account), is_it in zip(self._accounts, matches, strict=True) if is_it), None)


def presented_keys(scope: Scope) -> list[bytes]:
    """What a request shows as its keys, all as Authorization headers have them."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    if shown or not is_anthropic(scope):
        return shown
    return [PREFIX + value for name, value in scope["headers"] if name == b"x-api-key"]
