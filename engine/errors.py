"""Named errors of the engine; each says what broke, with the number and the limit."""

from typing import Literal

Reason = Literal[
    "invalid_http",
    "invalid_json",
    "invalid_body",
    "invalid_value",
    "unsupported",
    "unsupported_media_type",
    "empty_prompt",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "conflict",
    "too_deep",
    "too_large",
    "too_many_sequences",
    "context_length_exceeded",
    "unauthorized",
    "forbidden",
    "timeout",
    "head_timeout",
    "body_timeout",
    "overloaded",
    "too_many_queued_tokens",
    "under_pressure",
    "shutting_down",
    "engine_dead",
    "not_ready",
    "restarting",
    "stalled",
    "invalid_logits",
    "poison_request",
    "internal_error",
]
"""The closed set of words an error reply carries in `reason`."""


class VllmObsError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(VllmObsError):
    """The configuration or the model cannot be used; the process exits with 78 and this one line."""

    exit_code = 78


class StartupError(VllmObsError):
    """A process did not become ready; its owner exits with 70."""

    exit_code = 70


class EngineDeadError(VllmObsError):
    """The engine is gone; nothing sent to it will be answered."""


class EngineLostError(EngineDeadError):
    """One of the engines is gone, and with it the sequences that it ran; what others run goes on."""

    def __init__(self, cause: str, engine_index: int, request_ids: list[str]) -> None:
        super().__init__(cause)
        self.engine_index = engine_index
        self.request_ids = request_ids


class RequestError(VllmObsError, ValueError):
    """A request that can never succeed. `param` names the field, `reason` is from the closed set."""

    def __init__(self, message: str, param: str | None = None, reason: Reason = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.reason: Reason = reason


class RequestFailedError(VllmObsError):
    """An accepted request ended with an error inside the engine."""

    def __init__(self, message: str, reason: Reason = "internal_error") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class OverloadedError(RequestFailedError):
    """There is no room for this request now; there may be in so many seconds."""

    def __init__(self, message: str, reason: Reason, retry_after_seconds: int) -> None:
        super().__init__(message, reason)
        self.retry_after_seconds = retry_after_seconds


def shown(value: object) -> str:
    """A value for an error message: at most 64 characters of it."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a huge integer"
    return text if len(text) <= 64 else text[:61] + "..."
