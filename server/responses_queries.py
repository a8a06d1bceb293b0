"""What clients may ask in the query of a GET of /v1/responses."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vllm_obs.server.schema_responses_items import Item
from vllm_obs.server.validation import invalid

MAX_PAGE = 100
DEFAULT_PAGE = 20
MAX_EVENT_NUMBER = 10**9


class StreamQuery(NamedTuple):
    """Whether the events of a response are asked for, and the number of the one they come after."""

    is_wanted: bool
    after: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "StreamQuery":
        """ApiError 400 for what is no such query."""
        stream = query.get("stream", "false")
        if stream not in ("true", "false"):
            raise invalid("stream", "should be true or false")
        if "starting_after" in query and stream == "false":
            raise invalid("starting_after", "is only allowed together with stream=true")
        return cls(stream == "true", _number(query, "starting_after", -1, range(MAX_EVENT_NUMBER)))


class ItemPage(NamedTuple):
    """A page of items: at most `limit`, after the item with the id `after`, the latest first unless ascending."""

    limit: int
    after: str
    is_ascending: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ItemPage":
        """ApiError 400 for what is no such query."""
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("order", "should be asc or desc")
        limit = _number(query, "limit", DEFAULT_PAGE, range(1, MAX_PAGE + 1))
        return cls(limit, query.get("after", ""), order == "asc")

    def reply(self, items: Sequence[Item]) -> dict[str, Any]:
        """The page. ApiError 400 where no item has the id."""
        ordered = list(items) if self.is_ascending else list(reversed(items))
        if self.after:
            ids = [item["id"] for item in ordered]
            if self.after not in ids:
                raise invalid("after", "should be the id of one of the items")
            ordered = ordered[ids.index(self.after) + 1 :]
        page = ordered[: self.limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(ordered) > len(page),
        }


def _number(query: Mapping[str, str], name: str, default: int, allowed: range) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (len(text) <= 12 and text.isascii() and text.isdigit() and int(text) in allowed):
        raise invalid(name, f"should be a whole number from {allowed.start} to {allowed.stop - 1}")
    return int(text)
