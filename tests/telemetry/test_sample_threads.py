"""Threads have their names and their own CPU clocks; one that is gone is forgotten and reads no foreign memory."""

import threading
import time
from pathlib import Path

import pytest
from sample_sets import waiting_thread, work_until_the_end

from vllm_obs.telemetry.sample_threads import MAX_NAME_CHARS, ThreadBook, cpu_ns_of


def test_a_thread_is_known_by_its_name_and_the_kernels_id() -> None:
    book = ThreadBook()
    with waiting_thread("n" * 100) as thread:
        assert thread.ident is not None
        assert book.look_up(thread.ident) == ("n" * MAX_NAME_CHARS, thread.native_id)


def test_a_thread_that_python_did_not_start_has_no_clock() -> None:
    assert ThreadBook().look_up(0xAB) == ("thread 0xab", 0)


def test_what_is_forgotten_is_looked_up_again() -> None:
    book = ThreadBook()
    with waiting_thread("before") as thread:
        assert thread.ident is not None
        book.look_up(thread.ident)
        thread.name = "after"
        assert book.look_up(thread.ident)[0] == "before"
        book.forget(thread.ident)
        assert book.look_up(thread.ident)[0] == "after"


def test_the_book_holds_only_those_that_live() -> None:
    book = ThreadBook()
    for number in range(50):
        with waiting_thread(f"thread {number}") as thread:
            book.look_up(thread.ident or 0)
    book.look_up(0xAB)
    assert len(book._threads) <= threading.active_count() + 1


def test_the_clock_is_the_threads_own() -> None:
    with waiting_thread("works", work_until_the_end) as works, waiting_thread("waits") as waits:
        before = [cpu_ns_of(thread.native_id or 0) for thread in (works, waits)]
        deadline = time.monotonic() + 10
        while cpu_ns_of(works.native_id or 0) < before[0] + 5_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert cpu_ns_of(waits.native_id or 0) - before[1] < 5_000_000
    own = threading.get_native_id()
    assert time.thread_time_ns() <= cpu_ns_of(own) <= time.thread_time_ns()


def test_a_thread_that_is_gone_has_no_clock() -> None:
    with waiting_thread("ends") as thread:
        pass
    await_end(thread.native_id or 0)
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_ns_of(thread.native_id or 0)


def await_end(tid: int) -> None:
    """A thread that was joined lives a moment longer in the kernel."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{tid}").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
