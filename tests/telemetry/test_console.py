"""What a process says holds nobody up: a stuck or lost reader and a full disk cost lines, not the process."""

import fcntl
import io
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from vllm_obs.telemetry import console, unwaiting
from vllm_obs.telemetry.console import ENTRY_SECONDS, Console, ConsoleHandler

LINE = "x" * 1000
NUM_LINES = 200
"""More than a pipe holds."""


class Pipe(NamedTuple):
    """A console that writes to a pipe, and the end that is read."""

    console: Console
    read_fd: int

    def lines(self) -> list[str]:
        """What can be read now."""
        return os.read(self.read_fd, 1 << 20).decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "w") as stream:
        yield Pipe(Console(lambda: stream), read_fd)
    os.close(read_fd)


def test_what_nobody_reads_is_left_out_and_counted_once_somebody_does(pipe: Pipe) -> None:
    begun_at = time.monotonic()
    for _ in range(NUM_LINES):
        pipe.console.say(LINE)
    assert time.monotonic() - begun_at < 1.0, "only the first of them waits, a tenth of a second"
    num_kept = len(pipe.lines())
    assert 0 < num_kept < NUM_LINES
    pipe.console.say("again")
    pipe.console.say("and again")
    told = f"vllm-obs: {NUM_LINES - num_kept} entries were left out here, which nobody read"
    assert pipe.lines() == [told, "again", "and again"]


def test_an_entry_larger_than_the_pipe_does_not_block_and_its_line_ends_before_the_next(pipe: Pipe) -> None:
    pipe.console.say("y" * (1 << 20))
    pipe.console.say("left out")
    cut = os.read(pipe.read_fd, 1 << 20).decode()
    assert 0 < len(cut) < 1 << 20
    assert cut.strip("y") == ""
    pipe.console.say("next")
    pipe.console.say("and the one after")
    told = "vllm-obs: 2 entries were left out here, which nobody read"
    assert os.read(pipe.read_fd, 1 << 20).decode() == f"\n{told}\nnext\nand the one after\n"


Ends = tuple[int, int]


def socket_ends() -> Ends:
    ours, theirs = socket.socketpair()
    return theirs.detach(), ours.detach()


ENDS: dict[str, Callable[[], Ends]] = {"pipe": os.pipe, "socket": socket_ends, "terminal": os.openpty}
"""Two descriptors of each: of the one that reads, and of the one that is written to."""


@pytest.mark.parametrize("kind", ENDS)
def test_room_that_others_have_used_up_in_the_meantime_is_not_waited_for(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes write to one pipe: that it had room a moment ago is no promise."""
    monkeypatch.setattr(console, "_has_room", lambda fd, seconds: seconds >= 0)
    read_fd, write_fd = ENDS[kind]()
    try:
        with os.fdopen(write_fd, "w") as stream:
            said = Console(lambda: stream)
            saying = threading.Thread(target=say_until_full, args=(said,), daemon=True)
            saying.start()
            saying.join(20)
            assert not saying.is_alive(), "it waits for a reader"
            assert not fcntl.fcntl(write_fd, fcntl.F_GETFL) & os.O_NONBLOCK, "others write to it as before"
    finally:
        os.close(read_fd)


def say_until_full(said: Console) -> None:
    begun_at = time.monotonic()
    while time.monotonic() - begun_at < 2 * ENTRY_SECONDS:
        said.say(LINE)


def test_a_reader_that_takes_a_little_now_and_then_holds_nobody_up_for_long(pipe: Pipe) -> None:
    is_over = threading.Event()

    def read_slowly() -> None:
        while not is_over.wait(0.02):
            os.read(pipe.read_fd, 4096)

    pipe.console.say("y" * 30_000)  # so that there is something to read
    reader = threading.Thread(target=read_slowly)
    reader.start()
    begun_at = time.monotonic()
    pipe.console.say("z" * (8 << 20))
    took = time.monotonic() - begun_at
    is_over.set()
    reader.join(20)
    assert took < 3 * ENTRY_SECONDS


def test_what_cannot_be_opened_again_is_written_to_as_it_is(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(unwaiting.os, "open", refuse)
    pipe.console.say("here")
    assert pipe.lines() == ["here"]


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with path.open("a") as stream:
        said = Console(lambda: stream)
        said.say("one")
        said.say("two")
    assert path.read_text() == "before\none\ntwo\n"


@pytest.mark.parametrize("where", ["/dev/full", "/dev/null"])
def test_a_full_disk_is_no_error(where: str) -> None:
    with Path(where).open("w") as stream:
        Console(lambda: stream).say(LINE)


def test_a_reader_that_has_gone_is_no_error() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "w") as stream:
        told = Console(lambda: stream)
        told.say(LINE)
        told.say(LINE)


def test_a_stream_that_is_closed_or_was_never_there_is_no_error() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        Console(lambda stream=stream: stream).say(LINE)  # type: ignore[misc]


def test_log_lines_and_what_cannot_be_encoded(pipe: Pipe) -> None:
    logger = logging.Logger("told")
    logger.addHandler(ConsoleHandler(pipe.console))
    logger.warning("grün %s", "\udc80")
    assert pipe.lines() == ["grün \\udc80"]
