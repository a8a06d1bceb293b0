"""Text that goes out inside JSON: half a surrogate pair, which UTF-8 cannot hold, does not stay in it."""

import json
from typing import Any


def json_text(value: Any) -> str:
    """A value in JSON, characters as they are. ValueError for numbers that JSON does not have."""
    return escaped(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escaped(text: str) -> str:
    """JSON in which half a pair is spelled as JSON spells it: \\ud800."""
    return text.encode("utf-8", "backslashreplace").decode()


def replaced(text: str) -> str:
    """Plain text with a question mark for each half."""
    return text.encode("utf-8", "replace").decode()
