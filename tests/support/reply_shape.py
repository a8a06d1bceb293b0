"""Replies reduced to the kinds of their values, to be compared with recorded ones."""

from typing import Any

TOKEN_KEYED = ("prompt_logprobs", "top_logprobs")


def shape_of(value: Any, key: str = "") -> Any:
    """`value` with every scalar replaced by its kind and every list by its first item's shape."""
    if isinstance(value, dict):
        return {name: shape_of(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return _list_shape([item for item in value if item is not None], key)
    if value is None or isinstance(value, bool):
        return None if value is None else "boolean"
    return "number" if isinstance(value, int | float) else "text"


def _list_shape(items: list[Any], key: str) -> Any:
    if key in TOKEN_KEYED and not (items and "token" in items[0]):
        return "list"
    return [shape_of(items[0])] if items else []
