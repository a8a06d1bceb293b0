"""The layer no exception passes: what a route raises becomes an error reply."""

import asyncio
import contextlib
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.server.anthropic_paths import envelope_of
from vllm_obs.server.body import ClientGoneError
from vllm_obs.server.errors import ApiError, as_api_error

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0


class ErrorBoundary:
    """Errors raised on purpose are answered as they say, bugs with a 500 that holds an id and nothing else.

    A failure after the reply has begun closes the connection: there is no other way to say it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def send_watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_watched)
        except ClientGoneError:
            return
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            # Not here: an error that its own frame knew by another name would keep what was read for it, a large
            # body perhaps, until garbage is collected.
            await _answer(error, scope, receive, send)


async def _answer(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    reply = reply_for(error, scope["state"]["request_id"])
    scope["state"]["reason"] = reply.reason
    reply.envelope = envelope_of(scope)
    await send_error(reply, receive, send)


def reply_for(error: Exception, request_id: str) -> ApiError:
    """The reply for any exception; one that nobody raised on purpose goes to the log under `request_id`."""
    reply = as_api_error(error)
    if reply is None:
        logger.error("request %s failed", request_id, exc_info=error)
        reply = ApiError(f"internal error; its id is {request_id}", "internal_error")
    return reply


async def send_error(error: ApiError, receive: Receive, send: Send) -> None:
    """Send an error reply; after 408 and 413 the client may still be sending, so it is listened to for a while."""
    body = error.body()
    headers = [*error.headers(), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    if error.status in (408, 413):
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _drain(receive)
        body = b""
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive) -> None:
    """Read on for a second: closing with bytes unread would reset the connection under the reply."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
