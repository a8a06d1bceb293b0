"""Requests in few words to a running server, for tests that look at single choices and at streams."""

from dataclasses import dataclass
from typing import Any

from serving import MODEL, Server

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Asked:
    """A server, asked greedily unless a request says otherwise."""

    server: Server
    model: str = MODEL

    def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """(status, body) of any request."""
        return self.server.request("POST", path, {"model": self.model, "temperature": 0, **fields})

    def reply(self, path: str, **fields: Any) -> dict[str, Any]:
        """The body of a request that succeeds."""
        status, body = self.post(path, **fields)
        assert status == 200, body
        reply: dict[str, Any] = body
        return reply

    def text(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The first choice of a completion."""
        choice: dict[str, Any] = self.reply(TEXT, prompt=prompt, **fields)["choices"][0]
        return choice

    def chat(self, content: Any, **fields: Any) -> dict[str, Any]:
        """The first choice of a chat of one message."""
        messages = [{"role": "user", "content": content}]
        choice: dict[str, Any] = self.reply(CHAT, messages=messages, **fields)["choices"][0]
        return choice

    def events(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream."""
        return list(self.server.stream(path, {"model": self.model, "temperature": 0, **fields}))


def forced(text: str) -> dict[str, Any]:
    """The field that leaves the model nothing else to say."""
    return {"structured_outputs": {"choice": [text]}}


def joined(events: list[dict[str, Any]], index: int = 0) -> str:
    """The content of one choice of a chat's stream."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
