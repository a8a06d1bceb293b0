"""A flood of connections that cannot be taken is one line in the log."""

import asyncio
import errno
from typing import Any

import pytest

from vllm_obs.telemetry.accept_errors import AcceptErrors

MESSAGE = "socket.accept() out of system resource"


def contexts(*errors: OSError, message: str = MESSAGE) -> list[dict[str, Any]]:
    return [{"message": message, "exception": error} for error in errors]


def handled(errors: AcceptErrors, told: list[dict[str, Any]]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(errors)
        for context in told:
            loop.call_exception_handler(context)

    asyncio.run(scenario())


def test_many_errors_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = AcceptErrors()
    handled(errors, contexts(*[OSError(errno.EMFILE, "Too many open files")] * 1000))
    assert [record.getMessage() for record in caplog.records] == [
        "the inspector cannot take a connection: Too many open files (1 such errors so far)"
    ]
    assert errors.num_errors == 1000


def test_they_are_said_again_later(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.telemetry.accept_errors.SAY_AGAIN_SECONDS", 0.0)
    handled(AcceptErrors(), contexts(*[OSError(errno.ENFILE, "Too many open files in system")] * 2))
    assert len(caplog.records) == 2


def test_any_other_error_is_the_loops(caplog: pytest.LogCaptureFixture) -> None:
    errors = AcceptErrors()
    handled(
        errors,
        [
            *contexts(OSError(errno.EPIPE, "Broken pipe")),
            *contexts(OSError(errno.EMFILE, "Too many open files"), message="a task's exception"),
            {"message": "no exception at all"},
        ],
    )
    assert [record.name for record in caplog.records] == ["asyncio"] * 3
    assert errors.num_errors == 0
