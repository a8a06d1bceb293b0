"""Orders are read strictly, passed on one by one, and answered with what the API server says is in force."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from vllm_obs.telemetry import telemetry_control
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.records import TelemetrySet
from vllm_obs.telemetry.telemetry_control import OrderError, Setting, TelemetryControl, TelemetryOrder
from vllm_obs.telemetry.view import Source

API = Source("APIServer_0", 1, 1, "")


class FakeServer:
    """Obeys what it is told after `num_looks` looks at what it recorded; never if that is None."""

    def __init__(self, num_looks: int | None = 1) -> None:
        self.num_looks = num_looks
        self.told: list[dict[str, Any]] = []
        self._due: list[tuple[int, TelemetrySet]] = []
        self._num_seen = 0
        self.observer = Observer("run")
        config = ObserverConfig(Path("run"), detail_level=3, sample_rate=1.0)
        self.control = TelemetryControl(self.observer, config, self.catch_up)
        self.control.say = self.take

    def take(self, order: dict[str, Any]) -> None:
        self.told.append(order)
        if self.num_looks is not None:
            self._due.append((self._num_seen + self.num_looks, TelemetrySet(**order, set_at=time.monotonic_ns())))

    def say_now(self, detail_level: int, sample_rate: float) -> None:
        self.observer.state.apply(API, TelemetrySet(detail_level, sample_rate, time.monotonic_ns()))

    async def catch_up(self) -> None:
        self._num_seen += 1
        while self._due and self._due[0][0] <= self._num_seen:
            self.observer.state.apply(API, self._due.pop(0)[1])


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await play

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("body", "order"),
    [
        (b'{"detail_level": 0}', (0, None)),
        (b'{"sample_rate": 1}', (None, 1.0)),
        (b' {"detail_level": 3, "sample_rate": 0.25} ', (3, 0.25)),
        (b'{"detail_level": null, "sample_rate": 0}', (None, 0.0)),
    ],
)
def test_an_order_names_what_is_to_change(body: bytes, order: tuple[int | None, float | None]) -> None:
    assert TelemetryOrder.read(body) == TelemetryOrder(*order)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"sample_rate": NaN}', "the body is not JSON"),
        (b"[" * 2000, "the body is not JSON"),
        (b"3", "the body must be an object"),
        (b"{}", "nothing is to be changed"),
        (b'{"detail_level": null}', "nothing is to be changed"),
        (b'{"detail": 1}', "'detail' cannot be set; detail_level and sample_rate can"),
        (b'{"detail_level": 4}', "detail_level must be a whole number from 0 to 3"),
        (b'{"detail_level": -1}', "detail_level must be"),
        (b'{"detail_level": true}', "detail_level must be"),
        (b'{"detail_level": 1.0}', "detail_level must be"),
        (b'{"detail_level": "1"}', "detail_level must be"),
        (b'{"sample_rate": 1.01}', "sample_rate must be a number from 0 to 1"),
        (b'{"sample_rate": -1e-9}', "sample_rate must be"),
        (b'{"sample_rate": 1e999}', "the body is not JSON"),
        (b'{"sample_rate": false}', "sample_rate must be"),
        (b'{"sample_rate": [1]}', "sample_rate must be"),
    ],
)
def test_what_is_no_order_is_told_in_plain_words(body: bytes, words: str) -> None:
    with pytest.raises(OrderError) as caught:
        TelemetryOrder.read(body)
    assert caught.value.status == 400
    assert words in str(caught.value)


def test_before_the_server_said_anything_the_configuration_is_in_force() -> None:
    assert FakeServer().control.in_force == Setting(3, 1.0, 0)


def test_only_what_is_given_changes() -> None:
    async def play() -> None:
        server = FakeServer()
        first = await server.control.obey(TelemetryOrder(detail_level=1))
        second = await server.control.obey(TelemetryOrder(sample_rate=0.5))
        assert server.told == [first.ordered(), second.ordered()]
        assert (first[:2], second[:2]) == ((1, 1.0), (1, 0.5))
        assert server.control.in_force == second

    run(play())


def test_the_reply_waits_until_the_server_has_recorded_it() -> None:
    async def play() -> None:
        server = FakeServer(num_looks=5)
        # What it said before, though the same, is not this order's answer.
        server.say_now(2, 1.0)
        before = server.control.in_force.set_at
        assert (await server.control.obey(TelemetryOrder(detail_level=2))).set_at > before

    run(play())


def test_orders_at_once_are_all_obeyed_in_turn() -> None:
    async def play() -> None:
        server = FakeServer(num_looks=3)
        orders = [TelemetryOrder(detail_level=1), TelemetryOrder(sample_rate=0.5), TelemetryOrder(detail_level=2)]
        settings = await asyncio.gather(*map(server.control.obey, orders))
        assert [setting[:2] for setting in settings] == [(1, 1.0), (1, 0.5), (2, 0.5)]

    run(play())


def test_a_server_that_does_not_obey_is_said_and_its_order_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_control, "DEADLINE_SECONDS", 0.05)

    async def play() -> None:
        server = FakeServer(num_looks=None)
        with pytest.raises(OrderError, match="GET /inspect/telemetry tells") as caught:
            await server.control.obey(TelemetryOrder(detail_level=1))
        assert caught.value.status == 504
        assert server.control.in_force == Setting(3, 1.0, 0)
        server.num_looks = 1
        monkeypatch.undo()
        assert (await server.control.obey(TelemetryOrder(sample_rate=0.5)))[:2] == (1, 0.5)

    run(play())


def test_a_recording_takes_no_orders() -> None:
    async def play() -> None:
        server = FakeServer()
        server.control.say = None
        with pytest.raises(OrderError, match="recording") as caught:
            await server.control.obey(TelemetryOrder(detail_level=1))
        assert caught.value.status == 409

    run(play())
