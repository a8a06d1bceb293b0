"""Leaves out of a whole reply what has nothing to say, as OpenAI does where vLLM writes null."""

from typing import Any

ALWAYS_THERE = frozenset({"content", "refusal", "logprobs", "finish_reason"})
"""Fields that OpenAI's schema requires and lets be null."""


def without_empty(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply of /v1/completions or /v1/chat/completions with no null where OpenAI's schema has none.

    A message's annotations are a list there, which is empty without a search.
    """
    choices = [_filled(choice) for choice in reply["choices"]]
    for choice in choices:
        if "message" in choice:
            choice["message"] = _filled(choice["message"] | {"annotations": []})
    return _filled(reply) | {"choices": choices, "usage": _filled(reply["usage"])}


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None or name in ALWAYS_THERE}
