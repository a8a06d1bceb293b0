"""SampleLead: begins profiles by samples, by py-spy where that may look at all, and leads the Observer's part."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_obs.telemetry.profile_book import Profile, ProfileBook
from vllm_obs.telemetry.profile_control import BegunProfile
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.sample_capture import ROLE, SampleCapture
from vllm_obs.telemetry.sample_choice import (
    NoSamplerError,
    SamplerChoice,
    choose_sampler,
    find_program,
    targets_of,
)
from vllm_obs.telemetry.sample_job import SampleOrder
from vllm_obs.telemetry.telemetry_control import CatchUp, OrderError

GRACE_SECONDS = 10.0
"""So long after the end of sampling the other processes' files are waited for."""
POLL_SECONDS = 0.1
NUM_KEPT = 8
"""Of the run's own profiles the newest stay; in a directory of the user's nothing is ever removed."""

_logger = logging.getLogger(__name__)


@dataclass
class LeadPorts:
    """What the lead uses of its Observer: where records go and come from, and what it knows of py-spy."""

    record: Callable[[Record], None]
    catch_up: CatchUp
    find_program: Callable[[], str | None] = find_program
    version: str = ""


class SampleLead:
    """For one Observer. `begin` and `run` are called in turn, for one profile at a time."""

    def __init__(self, run_dir: Path, book: ProfileBook, ports: LeadPorts, is_named: bool = False) -> None:
        self._run_dir = run_dir
        self._book = book
        self._ports = ports
        self._is_named = is_named
        self._capture: SampleCapture | None = None
        self._choice = SamplerChoice("", "", [], "")

    async def begin(self, begun: BegunProfile) -> bool:
        """Whether py-spy begins here and now; else every process is to be ordered to sample itself.

        OrderError: 409 where py-spy was asked for and cannot be used, 500 where the files have no place.
        """
        try:
            self._choice = await asyncio.to_thread(self._choose, begun.order.sampler)
        except NoSamplerError as error:
            raise OrderError(str(error), 409) from None
        if not self._choice.program:
            return False
        try:
            await asyncio.to_thread(make_directory, Path(begun.directory), self._is_named)
        except OSError as error:
            _logger.warning("a profile's directory cannot be made: %s", error)
            raise OrderError("the profile's directory cannot be made", 500) from None
        self._capture = self._begin(begun)
        return True

    async def run(self, begun: BegunProfile) -> None:
        """The Observer's part from then on: sample, wait for the others, merge."""
        capture, self._capture = self._capture or self._begin(begun), None
        seconds = _order_of(begun).bounds.seconds
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        await capture.run(lambda: self._others_over(begun.name, deadline), self._ports.version)

    def _choose(self, wanted: str) -> SamplerChoice:
        return choose_sampler(wanted, targets_of(self._run_dir), self._ports.find_program())

    def _begin(self, begun: BegunProfile) -> SampleCapture:
        capture = SampleCapture(_order_of(begun), self._choice, self._ports.record)
        capture.begin()
        return capture

    async def _others_over(self, name: str, deadline: float) -> list[str]:
        """Of the processes that live, those that have not written their part by then."""
        while True:
            await self._ports.catch_up()
            missing = self._missing(self._book.profiles.get(name))
            if not missing or time.monotonic() >= deadline:
                return missing
            await asyncio.sleep(POLL_SECONDS)

    def _missing(self, profile: Profile | None) -> list[str]:
        ended = {key for key, part in profile.parts.items() if part.ended} if profile is not None else set()
        living = targets_of(self._run_dir)
        return [target.role for target in living if target not in ended and target.role != ROLE]


def _order_of(begun: BegunProfile) -> SampleOrder:
    return SampleOrder(begun.name, begun.directory, begun.order.seconds, begun.order.rate_hz)


def make_directory(directory: Path, is_named: bool) -> None:
    """Make a profile's directory; in the run's own folder the oldest give way. Raises OSError."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_named:
        found = [path for path in directory.parent.iterdir() if path.is_dir() and not path.is_symlink()]
        found.sort(key=lambda path: (path.lstat().st_mtime_ns, path.name))
        for path in found[: max(0, len(found) - NUM_KEPT + 1)]:
            shutil.rmtree(path, ignore_errors=True)
    directory.mkdir(mode=0o700)
