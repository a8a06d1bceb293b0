"""What one layer calls a field, and what the client who sent it calls it: errors speak of the client's."""

from collections.abc import Mapping

from vllm_obs.engine.errors import RequestError
from vllm_obs.server.errors import ApiError


def said_of(error: ApiError | RequestError, names: Mapping[str, str]) -> ApiError:
    """The same error about the field that `names` has for its own, in `param` and where its message begins."""
    param = names.get(error.param or "", error.param)
    message = str(error)
    for end in (": ", " ", "="):
        if error.param and param and message.startswith(error.param + end):
            message = param + message.removeprefix(error.param)
            break
    status = error.status if isinstance(error, ApiError) else None
    return ApiError(message, error.reason, param=param, status=status)
