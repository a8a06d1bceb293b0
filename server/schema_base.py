"""What the models of all bodies share: bounded numbers, texts and objects of any form, and how strict they are."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_LABEL_CHARS = 1024
MAX_COUNT = 2**31 - 1
MAX_EXACT = 2**53
"""Up to here a float tells every whole number apart from its neighbours."""
MAX_FREE_VALUES = 65_536
MAX_FREE_CHARS = 1_048_576


def whole(value: Any) -> Any:
    """2 for 2.0, as vLLM and JSON Schema have it: JSON knows one kind of numbers. Anything else as it is."""
    is_whole = type(value) is float and abs(value) <= MAX_EXACT and value.is_integer()
    return int(value) if is_whole else value


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
WHOLE = BeforeValidator(whole)
Whole = Annotated[int, WHOLE]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), WHOLE]

NumTokens = Annotated[int, Field(ge=1), WHOLE]
"""How many tokens may be made; the most is the model's length, which the engine knows."""


def _refuse(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("unsupported", "is not supported by this server")
    return value


Unsupported = Annotated[Any, BeforeValidator(_refuse)]
"""A field that is refused by its name."""
FreeObject = Annotated[dict[str, Any], BeforeValidator(check_size)]
"""An object whose form is the client's, such as a JSON Schema."""


def truncates(side: str) -> Any:
    """The type of `truncation_side` where a prompt that is too long is cut on that side and on no other."""

    def check(value: Any) -> Any:
        if value in ("left", "right") and value != side:
            raise PydanticCustomError("unsupported", "prompts are cut on the {side} here", {"side": side})
        return value

    return Annotated[Literal["left", "right"] | None, BeforeValidator(check)]


class StrictModel(BaseModel):
    """No coercion (but for `Whole`), finite numbers; unknown fields are ignored, as vLLM does.

    `served_fields` are names that this kind of body serves and others refuse (`server/unsupported.py`). What
    checks a body is made when the first of its kind comes, or by `prepare_models` before any does.
    """

    served_fields: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


class Options(StrictModel):
    """Fields within a field: a null one is one left out, as at the top of a body."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {name: field for name, field in value.items() if field is not None}


def prepare_models(*kinds: type[BaseModel]) -> None:
    """Make what checks bodies of these kinds, tens of milliseconds each, now."""
    for kind in kinds:
        kind.model_rebuild()
