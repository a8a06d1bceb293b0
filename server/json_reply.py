"""A JSON reply that tells when it is out."""

from collections.abc import Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class JsonReply(Response):
    """`content` as JSON; `on_end` is called once the socket has taken it."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, on_end: Callable[[], None] | None = None) -> None:
        super().__init__(orjson.dumps(content), status)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply."""
        await super().__call__(scope, receive, send)
        if self._on_end is not None:
            self._on_end()
