"""A service manager is told what the server does, and nobody waits for one."""

import os
import time

import pytest
from notify_socket import notify_socket

from vllm_obs.server.service_notify import NO_SERVICE, ServiceNotify


@pytest.mark.parametrize("is_abstract", [False, True])
def test_it_is_told_over_its_socket(is_abstract: bool) -> None:
    with notify_socket(is_abstract) as manager:
        service = ServiceNotify.of({"NOTIFY_SOCKET": manager.name})
        service.status("loading")
        assert service.ready()
        service.alive()
        service.stopping()
        assert manager.received() == ["STATUS=loading", "READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_reload_is_told_only_once_it_is_ready() -> None:
    with notify_socket() as manager:
        service = ServiceNotify.of({"NOTIFY_SOCKET": manager.name})
        service.begin_reload()
        service.end_reload()
        assert manager.received() == []
        service.ready()
        service.begin_reload()
        service.end_reload()
        ready, reloading, again = manager.received()
        assert (ready, again) == ("READY=1", "READY=1")
        word, moment = reloading.split("\n")
        assert word == "RELOADING=1"
        assert 0 <= time.monotonic_ns() // 1000 - int(moment.removeprefix("MONOTONIC_USEC=")) < 60_000_000


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "relative"])
def test_without_a_socket_it_does_nothing(name: str) -> None:
    service = ServiceNotify.of({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000"})
    assert (service.is_there, service.ready(), service.sign_seconds) == (False, False, 0.0)
    NO_SERVICE.alive()


def test_one_that_is_gone_or_does_not_read_holds_up_nobody() -> None:
    assert not ServiceNotify("/nowhere/notify").ready()
    with notify_socket() as manager:
        service = ServiceNotify(manager.name)
        begun = time.monotonic()
        for _ in range(5000):
            service.alive()
        assert not service.ready()
        assert time.monotonic() - begun < 30
        assert 0 < len(manager.received()) < 5000
        assert service.ready()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 7.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 7.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_signs_of_life_are_four_times_as_frequent_as_wanted(variables: dict[str, str], seconds: float) -> None:
    assert ServiceNotify.of({"NOTIFY_SOCKET": "/run/notify", **variables}).sign_seconds == seconds
