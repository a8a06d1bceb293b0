"""The Observer reads what its owner writes, and learns of its order to end and of its owner's death."""

import os
import threading
from collections.abc import Iterator

import pytest

from vllm_obs.engine import child_pipe
from vllm_obs.server import observer as server_observer
from vllm_obs.telemetry.observer_pipe import (
    CONFIGURATION,
    FAILED,
    MAX_MESSAGE_BYTES,
    READY,
    STOP,
    TELEMETRY,
    Envelope,
    ObserverPipe,
    PipeError,
    read_message,
)

ENVELOPE = {"title": "Observer", "parent_pid": 1, "spawned_at": 7, "configuration": {"run_dir": "/r"}}


class Ends:
    """Both pipes between an owner and its Observer."""

    def __init__(self) -> None:
        self.orders_read, self.orders_write = os.pipe()
        self.status_read, self.status_write = os.pipe()
        self._open = {self.orders_read, self.orders_write, self.status_read, self.status_write}

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self._open):
            os.close(fd)
            self._open.discard(fd)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def configured(ends: Ends) -> ObserverPipe:
    child_pipe.write_message(ends.orders_write, child_pipe.CONFIGURATION, ENVELOPE)
    return ObserverPipe(ends.orders_read, ends.status_write)


def test_both_sides_name_the_messages_alike() -> None:
    ours = (CONFIGURATION, READY, FAILED, STOP, MAX_MESSAGE_BYTES)
    theirs = (child_pipe.CONFIGURATION, child_pipe.READY, child_pipe.FAILED, child_pipe.STOP)
    assert ours == (*theirs, child_pipe.MAX_MESSAGE_BYTES)
    assert TELEMETRY == server_observer.TELEMETRY


def test_the_configuration_is_read_and_ready_is_said(ends: Ends) -> None:
    pipe = configured(ends)
    assert pipe.envelope == Envelope("Observer", 7, {"run_dir": "/r"})
    pipe.say(READY, {"inspect_port": 9000})
    assert child_pipe.read_message(ends.status_read) == ("READY", {"inspect_port": 9000})
    assert not os.get_inheritable(ends.orders_read)


@pytest.mark.parametrize(
    "message", [("STOP", None), ("CONFIGURATION", [1]), ("CONFIGURATION", {"title": "t"}), None]
)
def test_what_is_no_configuration_is_named(ends: Ends, message: tuple[str, object] | None) -> None:
    if message is None:
        ends.close(ends.orders_write)
    else:
        child_pipe.write_message(ends.orders_write, *message)
    with pytest.raises(PipeError, match="configuration"):
        ObserverPipe(ends.orders_read, ends.status_write)


@pytest.mark.parametrize("body", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\x01", b"\x02\x00\x00\x00\x91\x01"])
def test_garbage_is_no_message(ends: Ends, body: bytes) -> None:
    os.write(ends.orders_write, body)
    with pytest.raises(PipeError):
        read_message(ends.orders_read)


def test_a_cut_message_is_the_end(ends: Ends) -> None:
    os.write(ends.orders_write, b"\x09\x00\x00\x00ab")
    ends.close(ends.orders_write)
    assert read_message(ends.orders_read) is None


@pytest.mark.parametrize("how", ["order", "death", "garbage"])
def test_the_watch_ends_once_whatever_the_cause(ends: Ends, how: str) -> None:
    pipe = configured(ends)
    ended = threading.Semaphore(0)
    watch = pipe.watch(lambda: ended.release())
    child_pipe.write_message(ends.orders_write, "SOMETHING", None)
    if how == "order":
        child_pipe.write_message(ends.orders_write, child_pipe.STOP, None)
    elif how == "garbage":
        os.write(ends.orders_write, b"\xff\xff\xff\xff")
    else:
        ends.close(ends.orders_write)
    assert ended.acquire(timeout=10)
    watch.join(10)
    assert not ended.acquire(blocking=False)


def test_an_owner_that_is_gone_is_not_missed(ends: Ends) -> None:
    pipe = configured(ends)
    ends.close(ends.status_read)
    pipe.say(READY, {})
