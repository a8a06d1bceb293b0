"""InspectGuard: the outermost layer of the inspector API, which keeps other web pages and names out."""

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.telemetry.inspect_reply import Answer

POLICY_VIOLATION = 1008
_LOOPBACK_NAMES = frozenset({"localhost"})


class InspectGuard:
    """Refuses where Host is no address or name of this listener, or Origin, where given, is not that Host.

    A request is answered 403; a WebSocket is closed before it is open, which a server answers with 403 as well.

    A page of evil.example whose name was re-bound to 127.0.0.1 comes with `Host: evil.example`; a page that sends
    a form here comes with its Origin. `host` is what the listener was bound to: its own name is let in as well.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._names = _LOOPBACK_NAMES | {host.lower().strip("[]")}
        self._is_any = host in ("0.0.0.0", "::", "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal})
            return
        error = {"message": refusal, "type": "forbidden", "code": 403}
        await Answer({"error": error}, 403)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._is_ours(_host_of(f"//{hosts[0]}")):
            return "the Host header names another host than this listener; use its address, such as 127.0.0.1"
        # To the letter, as browsers write both: what is behind may compare them so.
        if any(origin != f"http://{hosts[0]}" for origin in _values(scope, b"origin")):
            return "pages of another origin may not use the inspector API"
        return None

    def _is_ours(self, host: str) -> bool:
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A numeric address cannot be re-bound; those that are not loopback reach us only if we listen to all.
        return address.is_loopback or self._is_any


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _host_of(url: str) -> str:
    """The host in lower case without brackets; empty where there is none, or more than a host and its port."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no number
        is_whole = f"//{parts.netloc}" == url and not parts.username
        return (parts.hostname or "").rstrip(".") if is_whole else ""
    except ValueError:
        return ""
