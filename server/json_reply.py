"""A JSON reply."""

from typing import Any

import orjson
from starlette.responses import Response


class JsonReply(Response):
    """`content` as JSON."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200) -> None:
        super().__init__(orjson.dumps(content), status)
