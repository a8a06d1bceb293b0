"""SampleCapture: the Observer's part of a profile by samples: itself, those py-spy looks at, and the merging."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from vllm_obs.telemetry.process_roles import rank_of
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded, Record
from vllm_obs.telemetry.sample_choice import SamplerChoice
from vllm_obs.telemetry.sample_job import SampleEnd, SampleJob, SampleOrder
from vllm_obs.telemetry.sample_merge import MERGED, MergeNote, merge
from vllm_obs.telemetry.sample_pyspy import Target, sample_from_outside

KIND = "samples"
ROLE = "Observer"
MAX_OUTSIDE = 64
"""So many processes are looked at from outside; each takes a process of py-spy for as long."""
POLL_SECONDS = 0.05

OthersOver = Callable[[], Awaitable[list[str]]]
"""Waits until the other processes have ended their parts; the roles of those that have not in time."""


class SampleCapture:
    """One profile, used from the Observer's event loop only, where its begins and ends are recorded.

    This process's own end comes last, when all is merged: who has seen it finds all files.
    """

    def __init__(self, order: SampleOrder, choice: SamplerChoice, record: Callable[[Record], None]) -> None:
        self._order = order
        self._choice = choice
        self._record = record
        self._own = Target(ROLE, os.getpid())

    def begin(self) -> None:
        """Record that it begins, here and in every process that py-spy is to look at."""
        for target in (self._own, *self._outside()):
            self._begun(target)

    async def run(self, others_over: OthersOver, version: str = "") -> None:
        """Sample until the time is over, wait for the others' files, merge them."""
        if self._choice.program:
            own = await self._run_outside()
            missing: list[str] = []
        else:
            own = await self._run_inside()
            missing = await others_over()
        note = MergeNote(self._order.profile, self._choice.sampler, self._choice.says, missing, version)
        try:
            await asyncio.to_thread(merge, Path(self._order.directory), note)
        except OSError as error:
            self._ended(self._own, own._replace(error=own.error or f"nothing could be merged: {error.strerror}"))
        else:
            self._ended(self._own, own._replace(files=[*own.files, *MERGED]))

    def _outside(self) -> Sequence[Target]:
        """Those that py-spy looks at beside this process."""
        if not self._choice.program:
            return ()
        return [target for target in self._choice.targets if target.role != ROLE][:MAX_OUTSIDE]

    async def _run_outside(self) -> SampleEnd:
        """py-spy looks at all side by side, at this process too; its end."""
        others = asyncio.gather(*(self._look_at(target) for target in self._outside()))
        own, _ = await asyncio.gather(sample_from_outside(self._choice.program, self._own, self._order), others)
        return own

    async def _look_at(self, target: Target) -> None:
        self._ended(target, await sample_from_outside(self._choice.program, target, self._order))

    async def _run_inside(self) -> SampleEnd:
        job = SampleJob(self._order, ROLE)
        job.start()
        try:
            while job.end is None:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            job.stop()
        return job.end

    def _rank_of(self, target: Target) -> int:
        return rank_of(target.role, [each.role for each in self._choice.targets])

    def _begun(self, target: Target) -> None:
        order, rank = self._order, self._rank_of(target)
        seconds, now = order.bounds.seconds, time.monotonic_ns()
        self._record(ProfileBegun(order.profile, KIND, target.role, target.pid, rank, 0, seconds, now))

    def _ended(self, target: Target, end: SampleEnd) -> None:
        self._record(
            ProfileEnded(
                self._order.profile,
                KIND,
                target.role,
                target.pid,
                self._rank_of(target),
                num_steps=0,
                num_samples=end.num_samples,
                ended_at=end.ended_at,
                written_at=time.monotonic_ns() if end.files else end.written_at,
                files=end.files,
                error=end.error,
            )
        )
