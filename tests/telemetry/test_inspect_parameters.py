"""What a handler's signature asks for is read from path and query; what it cannot be is refused with a reason."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from vllm_obs.telemetry.inspect_parameters import Asked, Bounds, arguments, parameters_in, wanted_by
from vllm_obs.telemetry.inspect_reply import InspectError

Few = Annotated[int, Bounds(ge=1, le=9)]


async def one_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"whole"}


def asked(headers: list[tuple[bytes, bytes]] | None = None) -> Asked:
    return Asked({"type": "http", "headers": headers or []}, one_body)


def read(annotation: Any, text: str, default: Any = None) -> Any:
    def handler(value: Any = default) -> None:
        """Takes one parameter."""

    handler.__annotations__["value"] = annotation
    return arguments(wanted_by(handler), asked(), {}, {"value": text})["value"]


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "", ""),
        (str | None, "a b", "a b"),
        (int, "-12", -12),
        (int | None, "007", 7),
        (float, "1", 1.0),
        (float, "-.5e2", -50.0),
        (bool, "True", True),
        (bool, "0", False),
        (Few, "9", 9),
        (Literal["10s", "run"], "run", "run"),
        (Annotated[str, Bounds(max_length=2)], "ab", "ab"),
    ],
)
def test_a_value_is_read_as_what_it_is(annotation: Any, text: str, value: Any) -> None:
    found = read(annotation, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "text", "says"),
    [
        (int, "", "value is ''; it is a whole number"),
        (int, "1.5", "value is '1.5'; it is a whole number"),
        (int, "1_0", "value is '1_0'; it is a whole number"),
        (int, "٣", "value is '٣'; it is a whole number"),
        (int, "9" * 5000, f"value is '{'9' * 32}'; it is a whole number"),
        (Few, "0", "value is '0'; it is a whole number from 1 to 9"),
        (Few, "10", "value is '10'; it is a whole number from 1 to 9"),
        (float, "nan", "value is 'nan'; it is a number"),
        (float, "inf", "value is 'inf'; it is a number"),
        (float, "1e999", "value is '1e999'; it is a number"),
        (Annotated[float, Bounds(ge=0.0)], "-1", "value is '-1'; it is a number from 0.0"),
        (bool, "perhaps", "value is 'perhaps'; it is true or false"),
        (Literal["10s", "run"], "1y", "value is '1y'; it is one of 10s, run"),
        (Annotated[str, Bounds(max_length=2)], "abc", "value is 'abc'; it is a text of at most 2 characters"),
    ],
)
def test_what_is_no_such_value_is_refused_with_what_it_may_be(annotation: Any, text: str, says: str) -> None:
    with pytest.raises(InspectError) as refused:
        read(annotation, text)
    assert (str(refused.value), refused.value.status) == (says, 422)


def test_what_is_not_given_has_its_default_and_may_be_missing() -> None:
    def handler(number: int, engine: str = "0", step: int | None = None) -> None:
        """Takes three."""

    wanted = wanted_by(handler)
    assert arguments(wanted, asked(), {"number": "3"}, {}) == {"number": 3, "engine": "0", "step": None}
    with pytest.raises(InspectError, match=r"^number is missing; it is a whole number$"):
        arguments(wanted, asked(), {}, {"engine": "1"})


def test_what_stands_in_the_path_goes_before_the_query() -> None:
    def handler(name: str) -> None:
        """Takes one."""

    assert arguments(wanted_by(handler), asked(), {"name": "path"}, {"name": "query"}) == {"name": "path"}


@dataclass(frozen=True)
class Filter:
    """Two parameters."""

    limit: Few = 5
    text: str = ""


def test_a_dataclass_is_a_group_of_parameters_and_the_request_itself_can_be_asked_for() -> None:
    def handler(request: Asked, wanted: Filter) -> None:
        """Takes both."""

    wanted = wanted_by(handler)
    request = asked([(b"accept", b"a"), (b"accept", b"b")])
    assert arguments(wanted, request, {}, {"limit": "2"}) == {"request": request, "wanted": Filter(2)}
    assert [each.name for each in parameters_in(wanted)] == ["limit", "text"]
    assert (request.header("accept"), request.header("host")) == ("a", "")


def test_a_kind_that_nothing_reads_is_an_error_of_whoever_wrote_the_handler() -> None:
    def handler(value: bytes) -> None:
        """Takes what cannot be."""

    with pytest.raises(TypeError, match="value is of <class 'bytes'>, which nothing reads"):
        wanted_by(handler)


def test_a_body_comes_in_parts_and_may_be_cut_off() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b"},
        {"type": "http.request", "body": b"c", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    request = Asked({"type": "http", "headers": []}, receive)

    async def whole() -> list[bytes]:
        return [part async for part in request.parts()]

    assert asyncio.run(whole()) == [b"a", b"b"]
    with pytest.raises(InspectError, match="cut off"):
        asyncio.run(whole())
