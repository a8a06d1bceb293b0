"""The items of a conversation as messages of a chat, and as much of them as fits."""

from collections.abc import Iterable
from typing import Any

from vllm_obs.server.schema_responses_items import Item
from vllm_obs.server.schema_tools import MAX_CALLS

Message = dict[str, Any]


def chat_messages(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """The messages; reasoning and calls belong to the assistant's message they stand with."""
    chat = _Chat()
    if instructions:
        chat.messages.append({"role": "system", "content": instructions})
    for item in items:
        chat.add(item)
    return chat.messages


class _Chat:
    """Puts items together; reasoning waits for what it led to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._thoughts: list[str] = []

    def add(self, item: Item) -> None:
        match item["type"]:
            case "reasoning":
                self._thoughts += _texts(item["content"] or item["summary"])
            case "function_call":
                self._calls().append(
                    {
                        "id": item["call_id"],
                        "type": "function",
                        "function": {"name": item["name"], "arguments": item["arguments"]},
                    }
                )
            case "function_call_output":
                self._thoughts.clear()
                self.messages.append(
                    {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}
                )
            case _:
                self._add_message(item)

    def _add_message(self, item: Item) -> None:
        if item["role"] == "assistant":
            self._assistant()["content"] = _content(item["content"])
        else:
            self._thoughts.clear()
            self.messages.append({"role": item["role"], "content": _content(item["content"])})

    def _assistant(self) -> Message:
        """A new message of the assistant's, with what it thought before."""
        message: Message = {"role": "assistant"}
        if self._thoughts:
            message["reasoning"] = "\n".join(self._thoughts)
            self._thoughts.clear()
        self.messages.append(message)
        return message

    def _calls(self) -> list[dict[str, Any]]:
        """The calls of the assistant's message that is the last one, or of a new one."""
        last: Message = self.messages[-1] if self.messages else {"role": ""}
        is_open = last["role"] == "assistant" and not self._thoughts
        if not is_open or len(last.get("tool_calls", ())) == MAX_CALLS:
            last = self._assistant()
        calls: list[dict[str, Any]] = last.setdefault("tool_calls", [])
        return calls


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts]


def _content(parts: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text as it is; of several parts each keeps its own."""
    if isinstance(parts, str):
        return parts
    if len(parts) == 1:
        return str(parts[0]["text"])
    return [{"type": "text", "text": text} for text in _texts(parts)]
