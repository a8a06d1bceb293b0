"""StackSampler: looks at the stacks of all threads of its own process at a fixed rate, for a bounded time."""

import sys
import threading
import time
from types import CodeType, FrameType
from typing import NamedTuple

from vllm_obs.telemetry.sample_positions import CodePositions
from vllm_obs.telemetry.sample_runs import OTHER, RunBook, StackKey, ThreadRuns
from vllm_obs.telemetry.sample_set import Frame, SampleCost
from vllm_obs.telemetry.sample_threads import ThreadBook, cpu_ns_of

MAX_SECONDS = 60.0
MAX_RATE_HZ = 250.0
DEFAULT_RATE_HZ = 99.0
"""Not 100, so that it does not keep step with what happens a hundred times a second."""
MAX_DEPTH = 96
"""The innermost calls that are kept of a stack."""
SLEEP_SECONDS = 0.1
RAN_SHARE = 0.1
"""A thread that used at least this part of the time since the last look ran, otherwise it waited."""

OTHER_FRAME = Frame("(other)", "", 0)
CUT_FRAME = Frame("(deeper)", "", 0)


class SampleBounds(NamedTuple):
    """How long and how often; `clipped` brings both into their ranges."""

    seconds: float
    rate_hz: float = DEFAULT_RATE_HZ

    def clipped(self) -> "SampleBounds":
        """At most a minute, from 1 to 250 looks a second."""
        return SampleBounds(min(max(self.seconds, 0.0), MAX_SECONDS), min(max(self.rate_hz, 1.0), MAX_RATE_HZ))


class StackSampler:
    """Runs in a thread of its own, which it leaves out. Keeps positions in the code only, never a value.

    It takes the GIL for each look, so a thread that computes in Python is seen where it lets go of it.
    """

    def __init__(self, bounds: SampleBounds, book: RunBook | None = None) -> None:
        self.bounds = bounds.clipped()
        self.book = book or RunBook()
        self.begun_at = 0
        self.ended_at = 0
        self.cost = SampleCost()
        self._threads = ThreadBook()
        self._positions = CodePositions()
        self._is_stopping = False

    def stop(self) -> None:
        """End `run` within a tenth of a second; callable from any thread."""
        self._is_stopping = True

    def run(self) -> None:
        """Look until the time is over or `stop`."""
        interval = round(1e9 / self.bounds.rate_hz)
        cpu_begun = time.thread_time_ns()
        for ident in sys._current_frames():
            self._meet(ident)  # so that the first look can tell what they have used since
        begun_at = last_at = self.begun_at = time.monotonic_ns()
        end_at = begun_at + round(self.bounds.seconds * 1e9)
        due_at, num_looks, num_missed = begun_at + interval, 0, 0
        while due_at <= end_at:
            self._sleep_until(due_at)
            if self._is_stopping:
                break
            now = time.monotonic_ns()
            self.look(now - last_at)
            last_at, num_looks = now, num_looks + 1
            num_late = max(0, now - due_at) // interval
            num_missed += num_late
            due_at += (num_late + 1) * interval
        self.ended_at = time.monotonic_ns()
        cpu_seconds = (time.thread_time_ns() - cpu_begun) / 1e9
        self.cost = SampleCost(num_looks, num_missed, cpu_seconds, (self.ended_at - begun_at) / 1e9)

    def _sleep_until(self, due_at: int) -> None:
        """A plain sleep in parts: to wait for an event takes half as much CPU again, 99 times a second."""
        while (num_ns := due_at - time.monotonic_ns()) > 0 and not self._is_stopping:
            time.sleep(min(num_ns / 1e9, SLEEP_SECONDS))

    def look(self, elapsed_ns: int) -> None:
        """Take one sample of every thread, for the time since the last look."""
        own = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if ident != own:
                self._take(ident, frame, elapsed_ns)

    def _take(self, ident: int, frame: FrameType, elapsed_ns: int) -> None:
        thread, used_ns = self._meet(ident)
        if not used_ns and thread.tid and thread.runs:
            # It has used no time at all since it was seen last, so it is where it was.
            thread.wait_on(elapsed_ns)
            return
        ran = used_ns >= RAN_SHARE * elapsed_ns
        self.book.add(thread, self._stack(frame), (elapsed_ns, used_ns), ran)

    def _meet(self, ident: int) -> tuple[ThreadRuns, int]:
        """A thread and the CPU time it has used since it was met last, in ns; 0 where that cannot be known."""
        thread = self.book.thread(*self._threads.look_up(ident))
        if not thread.tid:
            return thread, 0
        try:
            return thread, thread.used_until(cpu_ns_of(thread.tid))
        except OSError:
            # It ended, and its ident is another's now.
            self._threads.forget(ident)
            return self.book.thread(*self._threads.look_up(ident)), 0

    def _stack(self, frame: FrameType) -> int:
        key, codes = stack_key(frame)
        stack, is_new = self.book.place(key)
        if is_new:
            self._positions.keep(codes)
        return stack

    def code(self) -> tuple[list[Frame], list[list[int]]]:
        """The frames seen, and the stacks as indices into them, the outermost call first."""
        numbers: dict[Frame, int] = {OTHER_FRAME: 0}
        stacks = [
            [numbers.setdefault(frame, len(numbers)) for frame in self._frames(key)] for key in self.book.stacks
        ]
        return list(numbers), stacks

    def _frames(self, key: StackKey) -> list[Frame]:
        if self.book.stacks[key] == OTHER:
            return [OTHER_FRAME]
        places = [self._positions.frame(key[index], key[index + 1]) for index in range(0, len(key) - 1, 2)]
        if len(key) % 2:
            places.append(CUT_FRAME)
        return places[::-1]


def stack_key(frame: FrameType | None) -> tuple[StackKey, list[CodeType]]:
    """Code ids and offsets in turn, the innermost call first; a single number follows where it was cut.

    With it the code objects of these ids: looked up in a second walk they could be others, since the thread may
    run on between two of our instructions and its frames return.
    """
    key: list[int] = []
    codes: list[CodeType] = []
    while frame is not None:
        if len(key) == 2 * MAX_DEPTH:
            key.append(0)
            break
        code = frame.f_code
        codes.append(code)
        key += (id(code), frame.f_lasti)
        frame = frame.f_back
    return tuple(key), codes
