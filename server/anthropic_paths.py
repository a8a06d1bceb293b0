"""The paths of Anthropic's API, and what its clients find there beside what all clients get."""

from starlette.types import Scope

from vllm_obs.server.public_paths import route_path

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
PATHS = frozenset({MESSAGES, COUNT_TOKENS})

ENVELOPE = {"type": "error"}


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is for one of these paths."""
    return route_path(scope) in PATHS


def envelope_of(scope: Scope) -> dict[str, str]:
    """What an error's body says beside its `error`: these clients look for a type on the outside too."""
    return ENVELOPE if is_anthropic(scope) else {}
