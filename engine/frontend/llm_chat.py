"""Conversations as offline callers give them, in the form that chat templates take."""

import json
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.frontend.chat_template import Message

Conversations = Sequence[Message | Sequence[Message]]

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ChatOptions(TypedDict, total=False):
    """vLLM's options of a chat.

    `chat_template` is a template or a file with one, in the place of the model's own. `add_generation_prompt` is
    on unless `continue_final_message` lets the last message go on. `tools` are OpenAI's, `chat_template_kwargs`
    what else the template knows (enable_thinking…). `chat_template_content_format` "openai" hands lists of parts
    to the template as they are; else their texts are joined.
    """

    chat_template: str | None
    chat_template_content_format: Literal["auto", "string", "openai"]
    add_generation_prompt: bool
    continue_final_message: bool
    tools: list[dict[str, Any]] | None
    chat_template_kwargs: dict[str, Any] | None


def listed_conversations(messages: Conversations) -> list[list[Message]]:
    """One conversation or several, as a list of them. RequestError for what is neither."""
    several = [list(item) for item in messages if isinstance(item, list | tuple)]
    one = [item for item in messages if isinstance(item, dict)]
    if isinstance(messages, str) or len(messages) not in (len(several), len(one)):
        raise RequestError("messages is one list of messages, or a list of such lists.", "messages")
    return several or [one] * bool(one)


def template_options(options: ChatOptions) -> dict[str, Any]:
    """The keyword arguments of `ChatTemplate.encode`."""
    continues = options.get("continue_final_message", False)
    return {
        **(options.get("chat_template_kwargs") or {}),
        "add_generation_prompt": options.get("add_generation_prompt", not continues),
        "continue_final_message": continues,
        "tools": options.get("tools"),
    }


def for_template(conversation: Sequence[Message], keeps_parts: bool) -> list[Message]:
    """The messages as templates know them. RequestError for what is no conversation, or no text."""
    if not conversation:
        raise RequestError("A conversation has no message.", "messages", reason="empty_prompt")
    return [_message(message, keeps_parts) for message in conversation]


def _message(message: Any, keeps_parts: bool) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError("A message is a dictionary with role and content.", "messages")
    content = message.get("content")
    changed: Message = {} if keeps_parts and isinstance(content, list) else {"content": _text(content)}
    if message["role"] == "developer":
        changed["role"] = "system"
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_call(call) for call in calls]
    return {**message, **changed}


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError("The content of a message is text or a list of parts.", "messages")
    return "\n".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_TEXT_PARTS[kind]) if isinstance(kind, str) and kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise RequestError(
            f"A part of type {shown(kind)} is not supported: only texts are.", "messages", "unsupported"
        )
    return text


def _call(call: Any) -> Any:
    """A tool call whose arguments are an object, as templates want them; clients send them as text."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments or "{}")}}  # type: ignore[dict-item]
    except (ValueError, RecursionError):
        raise RequestError("The arguments of a tool call are not JSON.", "messages") from None
