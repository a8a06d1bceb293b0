"""API keys: every path that is not public needs one, decided at the edge on the path that will be routed."""

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.anthropic_paths import is_anthropic
from vllm_obs.server.api_keys import ApiKeys, Holder
from vllm_obs.server.errors import ApiError
from vllm_obs.server.public_paths import PUBLIC, route_path

PREFIX = b"Bearer "


class Authentication:
    """Lets a request through when its one Authorization header is `Bearer KEY` with a known key.

    On the paths of Anthropic's API one without that header may have the key as its one x-api-key header.
    All failures look the same. Into the state it puts whose the key is: `account` for people, `owner` for what is
    kept of the request, and `cache_owner` for its blocks in the prefix cache, which is empty while there is no
    other owner. Without keys there is none of them.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "http" and self._keys and route_path(scope) not in PUBLIC:
            holder = self._holder_of(presented_keys(scope))
            if holder is None:
                raise unauthorized()
            scope["state"] |= holder._asdict()
            scope["state"]["cache_owner"] = holder.owner if self._keys.are_several else ""
        await self.app(scope, receive, send)

    def _holder_of(self, presented: list[bytes]) -> Holder | None:
        """Whose the one key presented is, behind its prefix; None if that is no key of ours."""
        if len(presented) != 1 or not presented[0].startswith(PREFIX):
            return None
        return self._keys.holder(presented[0][len(PREFIX) :])


def unauthorized(*, closes: bool = False) -> ApiError:
    """The one reply to every wrong key."""
    return ApiError("a valid API key is required: Authorization: Bearer KEY", "unauthorized", closes=closes)


def key_names(scope: Scope, names: Collection[bytes]) -> frozenset[bytes]:
    """Which headers are keys on this path, where headers of these names (lower case) are sent."""
    is_other = b"authorization" not in names and is_anthropic(scope)
    return frozenset({b"authorization", b"x-api-key"}) if is_other else frozenset({b"authorization"})


def presented_keys(scope: Scope) -> list[bytes]:
    """What a request shows as its keys, all as Authorization headers have them."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    if shown or not is_anthropic(scope):
        return shown
    return [PREFIX + value for name, value in scope["headers"] if name == b"x-api-key"]
