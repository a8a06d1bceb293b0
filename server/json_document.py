"""JSON bodies: strict parsing into a dictionary of bounded depth."""

import json
import math
from typing import Any, NamedTuple

import orjson

from vllm_obs.server.errors import ApiError

MAX_INT_DIGITS = 40


class JsonObject(NamedTuple):
    """A parsed body. `defect` says what strict JSON would refuse in it (NaN, 1e999, a huge integer), or is "".

    A defect is not raised at once, so that the schema can name the field the number stands in.
    """

    fields: dict[str, Any]
    defect: str = ""


def parse_object(body: bytes, max_depth: int) -> JsonObject:
    """The JSON object in `body`, or ApiError: invalid_json, invalid_body (no object) or too_deep.

    The text must be UTF-8 without a byte order mark. A top-level null counts as a field left out.
    """
    if not body.strip():
        raise ApiError("the body is empty", "invalid_json")
    value, defect = _parse(body, max_depth)
    if type(value) is not dict:
        raise ApiError(f"the body must be a JSON object, not {_kind(value)}", "invalid_body")
    _check_depth(value, max_depth)
    return JsonObject({name: field for name, field in value.items() if field is not None}, defect)


def _parse(body: bytes, max_depth: int) -> tuple[Any, str]:
    try:
        return orjson.loads(body), ""
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise _too_deep(max_depth) from None
        return _parse_leniently(body, max_depth, error), error.msg


def _parse_leniently(body: bytes, max_depth: int, refusal: orjson.JSONDecodeError) -> Any:
    """Parse again, taking every number: only a body that has no other fault comes back."""
    try:
        text = body.decode("utf-8")
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except UnicodeDecodeError:
        raise ApiError("the body is not valid UTF-8", "invalid_json") from None
    except ValueError:
        where = f"line {refusal.lineno} column {refusal.colno}"
        raise ApiError(f"the body is not valid JSON: {refusal.msg} ({where})", "invalid_json") from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else math.inf


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> ApiError:
    return ApiError(f"the body is nested deeper than {max_depth} levels", "too_deep")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
