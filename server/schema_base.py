"""What the models of all bodies share: bounded numbers, texts and objects of any form, and how strict they are."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_LABEL_CHARS = 1024
MAX_COUNT = 2**31 - 1
MAX_FREE_VALUES = 65_536
MAX_FREE_CHARS = 1_048_576


def check_size(value: Any) -> Any:
    """The value as it is; an error where it holds too many values, or texts too long in all.

    What is looked at is bounded too, so that a body of many megabytes costs no more than the limit.
    """
    pending, num_values, num_chars = [value], 0, 0
    while pending:
        part = pending.pop()
        num_values += 1
        if type(part) is str:
            num_chars += len(part)
        elif isinstance(part, list | dict):
            num_values += len(part)
            if num_values <= MAX_FREE_VALUES:
                pending += part if isinstance(part, list) else [*part, *part.values()]
        if num_values > MAX_FREE_VALUES or num_chars > MAX_FREE_CHARS:
            raise PydanticCustomError(
                "size",
                "should hold at most {num_values} values and {num_chars} characters in all",
                {"num_values": MAX_FREE_VALUES, "num_chars": MAX_FREE_CHARS},
            )
    return value


Text = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]
Strings = Annotated[list[str], Field(fail_fast=True)]
"""Bounded in number and length where they are used; after a fault in one the others are not looked at."""
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
FreeObject = Annotated[dict[str, Any], BeforeValidator(check_size)]
"""An object whose form is the client's, such as a JSON Schema."""


class StrictModel(BaseModel):
    """No coercion, finite numbers; unknown fields are ignored, as vLLM does.

    `served_fields` are names that this kind of body serves and others refuse (`server/unsupported.py`). What
    checks a body is made when the first of its kind comes, or by `prepare_models` before any does.
    """

    served_fields: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


def prepare_models(*kinds: type[BaseModel]) -> None:
    """Make what checks bodies of these kinds, tens of milliseconds each, now."""
    for kind in kinds:
        kind.model_rebuild()
