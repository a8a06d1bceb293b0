"""Request bodies: read under a limit and a deadline, refused by media type before a byte is read."""

import asyncio

from starlette.types import Receive, Scope

from vllm_obs.server.config import Limits
from vllm_obs.server.errors import ApiError


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to reply to."""


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body of a JSON request.

    ApiError 415 for another media type or encoding, 413 above `max_body_bytes` (as soon as it is known), 408
    after `body_timeout_seconds`; ClientGoneError when the connection ends first.
    """
    headers = dict(scope["headers"])
    _check_media_type(headers)
    _check_content_length(headers.get(b"content-length", b"0"), limits.max_body_bytes)
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            return await _read(receive, limits.max_body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_timeout_seconds:g} s"
        raise ApiError(message, "body_timeout", closes=True) from None


def _check_media_type(headers: dict[bytes, bytes]) -> None:
    kind, *parameters = headers.get(b"content-type", b"").decode("latin-1").lower().split(";")
    if kind.strip() != "application/json":
        raise ApiError("the content type must be application/json", "unsupported_media_type")
    for name, _, value in (parameter.strip().partition("=") for parameter in parameters):
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise ApiError("the charset must be utf-8", "unsupported_media_type")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise ApiError("a content encoding is not supported: send the body as it is", "unsupported_media_type")


def _check_content_length(value: bytes, max_bytes: int) -> None:
    if len(value) > 18 or (value.isdigit() and int(value) > max_bytes):
        raise _too_large(max_bytes)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(f"the body is larger than the limit of {max_bytes} bytes", "too_large", closes=True)
