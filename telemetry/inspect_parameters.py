"""Parameters of the inspector's routes: what a handler asks for, read from path and query, and refused."""

import inspect
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from starlette.types import Receive, Scope

from vllm_obs.telemetry.inspect_reply import InspectError

MAX_ECHOED = 32
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class Asked(NamedTuple):
    """The request itself, for a handler that wants a header or the body."""

    scope: Scope
    receive: Receive

    def header(self, name: str) -> str:
        """The first of that name (lower case), "" where there is none."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == wanted), "")

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. InspectError (400) where the client goes before it is whole."""
        has_more = True
        while has_more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise InspectError("the body was cut off", 400)
            yield message.get("body", b"")
            has_more = message.get("more_body", False)


@dataclass(frozen=True)
class Bounds:
    """Of a number from `ge` to `le`, both allowed; of a text at most `max_length` characters."""

    ge: float | None = None
    le: float | None = None
    max_length: int | None = None
    description: str = ""


@dataclass(frozen=True)
class Parameter:
    """One of them. `kind` is str, int, float or bool; `choices` are the only texts that it may be, if any."""

    name: str
    kind: type
    choices: tuple[str, ...]
    bounds: Bounds
    default: Any
    is_required: bool

    def read(self, text: str | None) -> Any:
        """The value, or the default of one that was not given. InspectError (422) for what it cannot be."""
        if text is None:
            if self.is_required:
                raise InspectError(f"{self.name} is missing; it is {self.says()}", 422)
            return self.default
        value = _READERS[self.kind](text)
        if value is None or not self._is_within(value):
            raise InspectError(f"{self.name} is {text[:MAX_ECHOED]!r}; it is {self.says()}", 422)
        return value

    def says(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind is str:
            limit = self.bounds.max_length
            return "a text" if limit is None else f"a text of at most {limit} characters"
        if self.kind is bool:
            return "true or false"
        words = "a whole number" if self.kind is int else "a number"
        least, most = self.bounds.ge, self.bounds.le
        return (
            words + (f" from {least}" if least is not None else "") + (f" to {most}" if most is not None else "")
        )

    def _is_within(self, value: Any) -> bool:
        bounds = self.bounds
        if isinstance(value, str):
            is_choice = not self.choices or value in self.choices
            return is_choice and (bounds.max_length is None or len(value) <= bounds.max_length)
        return (bounds.ge is None or value >= bounds.ge) and (bounds.le is None or value <= bounds.le)


class Group(NamedTuple):
    """A dataclass of parameters that a handler takes as one."""

    make: Callable[..., Any]
    parameters: tuple[Parameter, ...]


Wanted = dict[str, Parameter | Group | type[Asked]]
"""What a handler is called with, by the names of its arguments."""


def wanted_by(handler: Callable[..., Any]) -> Wanted:
    """What a handler's signature asks for. TypeError for a kind that is not known here."""
    signature = inspect.signature(handler).parameters.values()
    return {each.name: _wanted(each.name, each.annotation, each.default) for each in signature}


def arguments(
    wanted: Wanted, asked: Asked, in_path: Mapping[str, str], query: Mapping[str, str]
) -> dict[str, Any]:
    """What to call the handler with. InspectError (422) for a value that is none."""
    given = {**query, **in_path}
    values: dict[str, Any] = {}
    for name, each in wanted.items():
        if isinstance(each, Parameter):
            values[name] = each.read(given.get(name))
        elif isinstance(each, Group):
            values[name] = each.make(**{one.name: one.read(given.get(one.name)) for one in each.parameters})
        else:
            values[name] = asked
    return values


def parameters_in(wanted: Wanted) -> Iterator[Parameter]:
    """All of them, those in groups too."""
    for each in wanted.values():
        if isinstance(each, Parameter):
            yield each
        elif isinstance(each, Group):
            yield from each.parameters


def _wanted(name: str, annotation: Any, default: Any) -> Parameter | Group | type[Asked]:
    if annotation is Asked:
        return Asked
    if is_dataclass(annotation) and isinstance(annotation, type):
        return Group(
            annotation, tuple(_parameter(each.name, each.type, each.default) for each in fields(annotation))
        )
    return _parameter(name, annotation, default)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    bounds = Bounds()
    if get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        bounds = next((mark for mark in marks if isinstance(mark, Bounds)), bounds)
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    kind = str if choices else annotation
    if kind not in _READERS:
        raise TypeError(f"{name} is of {annotation}, which nothing reads")
    return Parameter(name, kind, choices, bounds, default, default is inspect.Parameter.empty)


def _read_whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _read_number(text: str) -> float | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


_READERS: dict[type, Callable[[str], Any]] = {
    str: lambda text: text,
    int: _read_whole,
    float: _read_number,
    bool: lambda text: _TRUTHS.get(text.lower()),
}
