"""What every reply and chunk of one request has in common."""

from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Scope

from vllm_obs.server.state import ApiServer


@dataclass(frozen=True)
class ReplyHead:
    """The first fields of a reply, in their order. `created` is in seconds of wall time."""

    id: str
    object: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def of(cls, api: ApiServer, scope: Scope, prefix: str, kind: str, model: str) -> "ReplyHead":
        """The head of the reply to a request: its id holds the client's own X-Request-Id where it sent one."""
        state = scope["state"]
        return cls(f"{prefix}-{state['label']}", kind, api.wall_time(state["received_at"]), model, api.fingerprint)

    def fields(self) -> dict[str, Any]:
        """The fields as a dictionary that a reply goes on with."""
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}

    def chunk_prefix(self) -> bytes:
        """An event up to the bracket that opens its choices."""
        return b"data: " + orjson.dumps(self.fields())[:-1] + b',"choices":['
