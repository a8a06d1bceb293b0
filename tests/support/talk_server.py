"""A server that one can talk to: what it was asked, and what it answers, are a test's."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Say = Callable[[dict[str, Any]], list[Any]]
"""The events that answer a body; a text among them is sent as it is, None closes the connection."""


class TalkServer:
    """Offers the model `talker`. `asked` holds the path, the Authorization header and the body of each POST."""

    def __init__(self, say: Say, key: str = "") -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.say = say
        self.key = key
        self.url = ""

    @contextmanager
    def listening(self, socket_path: Path | None = None) -> Iterator["TalkServer"]:
        """Listen on a free port of the loopback interface, or on a Unix socket."""
        handler = type("BoundHandler", (_Handler,), {"talk": self})
        server: socketserver.BaseServer
        if socket_path is None:
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
        else:
            server = socketserver.ThreadingUnixStreamServer(str(socket_path), handler)
            self.url = f"unix:{socket_path}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with server:
                yield self
                server.shutdown()
        finally:
            server.shutdown()
            thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    talk: TalkServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nowhere."""

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "talker"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        authorization = self.headers.get("authorization", "")
        self.talk.asked.append((self.path, authorization, body))
        if self.talk.key and authorization != f"Bearer {self.talk.key}":
            self._json(401, {"error": {"message": "a valid API key is required"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in self.talk.say(body):
            if event is None:
                return
            text = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _json(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


def chat_event(content: str = "", **delta: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}}]}


def text_event(text: str) -> dict[str, Any]:
    """A chunk of a completion."""
    return {"choices": [{"index": 0, "text": text}]}
