"""TelemetryControl: passes orders about detail and sampling on to the API server, and knows what is in force."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any, NamedTuple

import orjson

from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import MAX_DETAIL_LEVEL, ObserverConfig

DEADLINE_SECONDS = 2.0
POLL_SECONDS = 0.01
MAX_SHOWN_CHARS = 64

CatchUp = Callable[[], Awaitable[None]]


class OrderError(Exception):
    """An order that is none, or that was not obeyed; `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def read_order(body: bytes, example: str) -> dict[str, Any]:
    """The object in a JSON body, which is to be one such as `example`. OrderError (400) for anything else."""
    try:
        values = orjson.loads(body)
    except ValueError:
        raise OrderError("the body is not JSON", 400) from None
    if not isinstance(values, dict):
        raise OrderError(f"the body must be an object such as {example}", 400)
    return values


def unknown_name(values: Iterable[str], known: Container[str]) -> str | None:
    """The first name that is not known, cut for people to read."""
    return next((name[:MAX_SHOWN_CHARS] for name in values if name not in known), None)


class Setting(NamedTuple):
    """How much is traced: detail 0 to 3, and the share of requests, 0 to 1, since `set_at` (monotonic ns).

    `set_at` is 0 while nothing but the configuration says it.
    """

    detail_level: int
    sample_rate: float
    set_at: int = 0

    def ordered(self) -> dict[str, Any]:
        """As the API server is told it."""
        return {"detail_level": self.detail_level, "sample_rate": self.sample_rate}

    def is_as(self, other: "Setting") -> bool:
        """Whether both say the same, whenever they were set."""
        return self.ordered() == other.ordered()


class TelemetryOrder(NamedTuple):
    """What somebody wants changed; None leaves it as it is."""

    detail_level: int | None = None
    sample_rate: float | None = None

    @classmethod
    def read(cls, body: bytes) -> "TelemetryOrder":
        """The order in a JSON body. OrderError (400) says in plain words what is wrong with it."""
        values = read_order(body, '{"detail_level": 1}')
        if (unknown := unknown_name(values, cls._fields)) is not None:
            raise OrderError(f"{unknown!r} cannot be set; detail_level and sample_rate can", 400)
        order = cls(_detail_level(values.get("detail_level")), _sample_rate(values.get("sample_rate")))
        if order == cls():
            raise OrderError("nothing is to be changed; give detail_level, sample_rate or both", 400)
        return order

    def over(self, setting: Setting) -> Setting:
        """The setting that this order makes of another."""
        return Setting(
            setting.detail_level if self.detail_level is None else self.detail_level,
            setting.sample_rate if self.sample_rate is None else self.sample_rate,
        )


def _detail_level(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_DETAIL_LEVEL:
        raise OrderError(f"detail_level must be a whole number from 0 to {MAX_DETAIL_LEVEL}", 400)
    return value


def _sample_rate(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise OrderError("sample_rate must be a number from 0 to 1", 400)
    return float(value)


class TelemetryControl:
    """One Observer's line to the API server. `say` is set where there is one: a recording has none.

    The API server alone decides; what it recorded last is in force.
    """

    def __init__(self, observer: Observer, config: ObserverConfig, catch_up: CatchUp) -> None:
        self.say: Callable[[dict[str, Any]], None] | None = None
        self._observer = observer
        self._configured = Setting(config.detail_level, config.sample_rate)
        self._catch_up = catch_up
        self._asked: Setting | None = None
        self._turn = asyncio.Lock()

    @property
    def in_force(self) -> Setting:
        """What the API server said last; before it has said anything, what it was started with."""
        told = self._observer.state.telemetry
        return Setting(*told) if told is not None else self._configured

    async def obey(self, order: TelemetryOrder) -> Setting:
        """Change what the order names; what is in force once the API server has recorded it.

        OrderError: 409 for a recording, 504 when the API server does not obey within two seconds.
        """
        if self.say is None:
            raise OrderError("this is a recording: there is no server to give orders to", 409)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._turn:
                return await self._obey(order, self.say)
        except TimeoutError:
            message = (
                f"the API server has not done it within {DEADLINE_SECONDS:g} s and may do it yet; "
                "GET /inspect/telemetry tells what is in force"
            )
            raise OrderError(message, 504) from None

    async def _obey(self, order: TelemetryOrder, say: Callable[[dict[str, Any]], None]) -> Setting:
        wanted = self._asked = order.over(self._base())._replace(set_at=time.monotonic_ns())
        say(wanted.ordered())
        while True:
            await self._catch_up()
            found = self.in_force
            if found.set_at >= wanted.set_at and found.is_as(wanted):
                return found
            await asyncio.sleep(POLL_SECONDS)

    def _base(self) -> Setting:
        """What is left as it is where an order does not name it; an order that is still under way counts."""
        found, asked = self.in_force, self._asked
        return asked if asked is not None and asked.set_at > found.set_at else found
