"""Error replies: the one body shape, the status of every reason and the type of every status."""

import math
import time
from typing import Any

import orjson

from vllm_obs.engine.errors import EngineDeadError, OverloadedError, Reason, RequestError, RequestFailedError
from vllm_obs.server.engine_deaths import told_cause

MAX_ECHO_CHARS = 64
MAX_PARAM_CHARS = 128
MAX_BODY_BYTES = 4096

STATUS_OF_REASON: dict[Reason, int] = {
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "unauthorized": 401,
    "forbidden": 403,
    "timeout": 504,
    "head_timeout": 408,
    "body_timeout": 408,
    "overloaded": 429,
    "too_many_queued_tokens": 429,
    "under_pressure": 429,
    "shutting_down": 503,
    "not_ready": 503,
    "restarting": 503,
    "stalled": 503,
    "engine_dead": 500,
    "invalid_logits": 500,
    "internal_error": 500,
}
"""Reasons left out are 400: a client's mistake that can never succeed, or (`poison_request`) what must not be
tried again, as clients do by themselves with a 500."""

TYPE_OF_STATUS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    414: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
    505: "HTTPVersionNotSupportedError",
}

RETRY_AFTER_SECONDS = {429: 1, 503: 2}
"""Where nobody knows better."""
MAX_RETRY_AFTER_SECONDS = 60


class ApiError(Exception):
    """A reply that is not 2xx. `status` defaults to the reason's own; `closes` ends the connection after it."""

    def __init__(
        self,
        message: str,
        reason: Reason,
        *,
        param: str | None = None,
        status: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason: Reason = reason
        self.param = param
        self.status = status or STATUS_OF_REASON.get(reason, 400)
        self.closes = closes or reason == "shutting_down"
        self.envelope: dict[str, str] = {}
        """What the body says beside its `error`, for clients that look for more."""
        self.retry_after_seconds = RETRY_AFTER_SECONDS.get(self.status)

    def content(self) -> dict[str, Any]:
        """The `{"error": …}` object of this error."""
        return {
            **self.envelope,
            "error": {
                "message": self.message[:2000],
                "type": TYPE_OF_STATUS.get(self.status, "InternalServerError"),
                "param": self.param[:MAX_PARAM_CHARS] if self.param else None,
                "code": self.status,
                "reason": self.reason,
            },
        }

    def body(self) -> bytes:
        """The JSON of `content`, at most 4 KiB."""
        content = self.content()
        body = orjson.dumps(content)
        if len(body) > MAX_BODY_BYTES:
            content["error"]["message"] = self.message[:400]
            body = orjson.dumps(content)
        return body

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes with the body, less the content length."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_seconds is not None:
            headers.append((b"retry-after", str(self.retry_after_seconds).encode()))
        if self.closes:
            headers.append((b"connection", b"close"))
        return headers


def seconds_until(moment: int) -> int:
    """What `Retry-After` says of a moment (monotonic ns): 1 to 60, and 1 where it has passed."""
    seconds = math.ceil((moment - time.monotonic_ns()) / 1e9)
    return min(MAX_RETRY_AFTER_SECONDS, max(1, seconds))


def shown(text: str) -> str:
    """A piece of a client's input fit for a message: quoted, at most 64 characters of it."""
    return repr(text if len(text) <= MAX_ECHO_CHARS else text[: MAX_ECHO_CHARS - 1] + "…")


def as_api_error(error: Exception) -> ApiError | None:
    """The reply for an error the engine raises on purpose, None for a bug."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(str(error), error.reason, param=error.param)
    if isinstance(error, EngineDeadError):
        return request_failed("engine_dead", str(error))
    if isinstance(error, OverloadedError):
        overloaded = ApiError(str(error), error.reason)
        overloaded.retry_after_seconds = error.retry_after_seconds
        return overloaded
    if isinstance(error, RequestFailedError):
        return request_failed(error.reason, str(error))
    return None


CAUSE_OF_REASON: dict[Reason, str] = {
    "engine_dead": "the engine stopped before the request was finished",
    "shutting_down": "the server shut down before the request was finished",
    "overloaded": "the engine cannot take more requests now",
    "too_many_queued_tokens": "the engine cannot take more prompt tokens now",
    "under_pressure": "the engine holds as much as it can",
    "stalled": "what came of the request was not read in time",
    "timeout": "the request was not finished within its timeout",
    "poison_request": "the engine crashed on this request before; it is not run again for some minutes",
    "invalid_logits": "the model gave no usable probabilities for this request",
    "unsupported": "the request's grammar cannot be used: following it takes more work than a token may",
    "invalid_value": "the constraints on this request's tokens left none that could come next",
}


def request_failed(reason: Reason, cause: str = "") -> ApiError:
    """The engine gave this request up; what happened is in the log, under the request's id.

    Of its `cause` a client is told how a process ended, and nothing else.
    """
    message = CAUSE_OF_REASON.get(reason, "the request failed inside the engine")
    if reason == "engine_dead" and (told := told_cause(cause)):
        message = f"{message}: {told}"
    return ApiError(message, reason)
