"""ProfileControl: passes orders for profiles on to the API server, and says what became of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from vllm_obs.telemetry.profile_book import Profile, ProfileBook
from vllm_obs.telemetry.profile_files import ProfileFiles
from vllm_obs.telemetry.sample_choice import AUTO, SAMPLERS
from vllm_obs.telemetry.sample_stacks import DEFAULT_RATE_HZ, MAX_RATE_HZ
from vllm_obs.telemetry.sample_stacks import MAX_SECONDS as MAX_SAMPLE_SECONDS
from vllm_obs.telemetry.telemetry_control import CatchUp, OrderError, read_order, unknown_name

_logger = logging.getLogger(__name__)

DEADLINE_SECONDS = 5.0
POLL_SECONDS = 0.02
KINDS = ("operators", "samples")
MAX_SECONDS = 600
MAX_STEPS = 2000
DEFAULT_SECONDS = 5.0
DEFAULT_STEPS = 200


class ProfileOrder(NamedTuple):
    """What somebody wants profiled. It ends at the first bound met; samples know only the seconds.

    They are taken `rate_hz` times a second by `sampler`.
    """

    kind: str = "operators"
    seconds: float = DEFAULT_SECONDS
    steps: int = DEFAULT_STEPS
    sampler: str = AUTO
    rate_hz: float = DEFAULT_RATE_HZ

    @classmethod
    def read(cls, body: bytes) -> "ProfileOrder":
        """The order in a JSON body. OrderError (400) says in plain words what is wrong with it."""
        values = read_order(body, '{"seconds": 5}')
        if (unknown := unknown_name(values, cls._fields)) is not None:
            raise OrderError(f"{unknown!r} is unknown; {', '.join(cls._fields)} can be given", 400)
        order = cls(**values)
        order._check()
        if order.kind == "samples" and "steps" in values:
            raise OrderError("samples know only seconds, no steps", 400)
        return order

    def _check(self) -> None:
        if self.kind not in KINDS:
            raise OrderError(f"kind must be one of {', '.join(KINDS)}", 400)
        if type(self.seconds) not in (int, float) or not 0 < self.seconds <= MAX_SECONDS:
            raise OrderError(f"seconds must be a number above 0 and at most {MAX_SECONDS}", 400)
        if type(self.steps) is not int or not 1 <= self.steps <= MAX_STEPS:
            raise OrderError(f"steps must be a whole number from 1 to {MAX_STEPS}", 400)
        if self.kind == "samples" and self.seconds > MAX_SAMPLE_SECONDS:
            raise OrderError(f"seconds must be at most {MAX_SAMPLE_SECONDS:g} for samples", 400)
        if self.sampler not in SAMPLERS:
            raise OrderError(f"sampler must be one of {', '.join(SAMPLERS)}", 400)
        if type(self.rate_hz) not in (int, float) or not 1 <= self.rate_hz <= MAX_RATE_HZ:
            raise OrderError(f"rate_hz must be a number from 1 to {MAX_RATE_HZ:g}", 400)


class BegunProfile(NamedTuple):
    """A profile that has begun. `wait_over()` tells whether all processes have ended, once it is known."""

    name: str
    directory: str
    order: ProfileOrder
    wait_over: Callable[[], Awaitable[bool]]


ObserverPart = Callable[[BegunProfile], Awaitable[None]]
"""What the Observer does itself while a profile of a kind is under way, and after it."""
BeginAlone = Callable[[BegunProfile], Awaitable[bool]]
"""Whether the Observer has begun a profile with no process's help; else the processes are to be ordered to."""


class ProfileControl:
    """One Observer's line to the API server. `say` is set where there is one: a recording has none.

    `parts` are the Observer's own, by kind; before they come, `alone` may begin a kind without the API server.
    """

    def __init__(self, book: ProfileBook, files: ProfileFiles, catch_up: CatchUp, now: Callable[[], int]) -> None:
        self.say: Callable[[dict[str, Any]], None] | None = None
        self.parts: dict[str, ObserverPart] = {}
        self.alone: dict[str, BeginAlone] = {}
        self.book = book
        self.files = files
        self._catch_up = catch_up
        self._now = now
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, order: ProfileOrder) -> Profile:
        """Have it begun; the profile once a process has recorded that it did.

        OrderError: 409 for a recording and while another is under way, 504 when nobody begins within five seconds,
        else what the API server said.
        """
        if self.say is None:
            raise OrderError("this is a recording: there is no server to profile", 409)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._turn:
                return await self._begin(order, self.say)
        except TimeoutError:
            message = (
                f"no process has begun within {DEADLINE_SECONDS:g} s, as one that hangs cannot; "
                "GET /inspect/profiles tells if one does yet"
            )
            raise OrderError(message, 504) from None

    async def close(self) -> None:
        """End the Observer's own parts."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, order: ProfileOrder, say: Callable[[dict[str, Any]], None]) -> Profile:
        other = self.book.under_way(self._now())
        if other is not None:
            raise OrderError(f"the profile {other.name} is under way; it ends at its bounds", 409)
        name = self.files.free_name(order.kind)
        begun = BegunProfile(name, str(self.files.base / name), order, lambda: self._wait_over(name))
        alone = self.alone.get(order.kind)
        if alone is None or not await alone(begun):
            say({"profile": name, **order._asdict()})
        while True:
            await self._catch_up()
            profile = self.book.profiles.get(name)
            if profile is not None:
                break
            await asyncio.sleep(POLL_SECONDS)
        if profile.errors and not profile.begun_at:
            raise _refusal(profile.errors[0])
        self._begin_part(begun)
        return profile

    def _begin_part(self, begun: BegunProfile) -> None:
        part = self.parts.get(begun.order.kind)
        if part is None:
            return
        task = asyncio.create_task(_guarded(part, begun), name="profile part")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_over(self, name: str) -> bool:
        """Whether every process has ended."""
        while True:
            await self._catch_up()
            profile = self.book.profiles.get(name)
            if profile is None or profile.state(self._now()) != "running":
                return profile is not None and profile.is_over
            await asyncio.sleep(10 * POLL_SECONDS)


async def _guarded(part: ObserverPart, begun: BegunProfile) -> None:
    try:
        await part(begun)
    except Exception:
        _logger.exception("the Observer's own part of the profile %s failed", begun.name)


def _refusal(words: str) -> OrderError:
    """What the API server recorded: an HTTP status and why."""
    status, _, message = words.partition(" ")
    return OrderError(message, int(status)) if status.isdigit() and message else OrderError(words, 503)
