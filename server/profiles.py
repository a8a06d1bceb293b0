"""ServerProfiles: begins and ends the run's profiles, whoever orders them, one at a time."""

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, NamedTuple, Protocol

from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.profile_captures import CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_core import order_values
from vllm_obs.engine.profile_kinds import PROCESS_KINDS
from vllm_obs.engine.profile_order import OPERATORS, ProfileOrder, check_order
from vllm_obs.server.errors import ApiError, as_api_error
from vllm_obs.server.profile_config import DEFAULT_SECONDS, ProfilerConfig
from vllm_obs.server.profile_files import make_directory, profile_name
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import ProfileEnded

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
WRITTEN_LOOK_SECONDS = 0.05
STOP_SECONDS = 1.5
"""So long a stop waits for the files; they are written on after it."""
DEFAULT_RATE_HZ = 99.0
WRITE_SECONDS = 120.0
"""So long after its end a profile may take to be written before it is no longer waited for."""


class ProfileRequest(NamedTuple):
    """What somebody wants: a profile of that name and kind within these bounds; `profile` empty for a new name."""

    profile: str = ""
    kind: str = OPERATORS
    seconds: float = DEFAULT_SECONDS
    steps: int = 0
    rate_hz: float = DEFAULT_RATE_HZ


class EngineCalls(Protocol):
    """The engine's UTILITY calls."""

    async def call_utility(self, method: str, *args: Any) -> Any:
        """The answer; RequestFailedError with the engine's own words, or EngineDeadError."""


class ServerProfiles:
    """Used on the event loop. Nothing that happens to a profile reaches the serving of requests."""

    def __init__(
        self, run_dir: str, config: ProfilerConfig, recorder: Recorder, role: str = "APIServer_0"
    ) -> None:
        self._run_dir = run_dir
        self._config = config
        self._recorder = recorder
        self._site = CaptureSite(role, os.getpid())
        self._captures = ProcessCaptures(self._site, recorder, PROCESS_KINDS)
        self._engine: EngineCalls | None = None
        self._following: asyncio.Task[None] | None = None
        self._orders: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def attach(self, engine: EngineCalls) -> None:
        """The engine is ready."""
        self._engine = engine

    @property
    def is_under_way(self) -> bool:
        """Whether a profile is not over, or not written."""
        return self._following is not None and not self._following.done()

    async def start(self, request: ProfileRequest) -> ProfileOrder:
        """Begin. ApiError: 409 while another is under way, 503 without an engine, 400 for one out of bounds."""
        async with self._turn:
            if self.is_under_way and not await self._has_just_ended():
                raise ApiError("a profile is under way already; POST /stop_profile ends it", "conflict")
            if self._engine is None:
                raise ApiError("the model is being loaded", "not_ready")
            order = await self._order(request)
            await self._engine.call_utility("start_profile", order_values(order))
            self._captures.obey(order)
            self._following = asyncio.create_task(self._follow(order, self._engine), name="profile")
            logger.info(
                "the profile %s begins: %d steps or %g s at most", order.profile, order.steps, order.seconds
            )
            return order

    async def stop(self) -> bool:
        """End what is under way; whether its files are written already. ApiError 409 where there is none.

        Another API server may have begun it, and sees it end then.
        """
        following, engine = self._following, self._engine
        if engine is None or not (self.is_under_way or await _is_profiled(engine)):
            raise ApiError("no profile is under way; POST /start_profile begins one", "conflict")
        await engine.call_utility("stop_profile")
        if following is None or following.done():
            return False
        self._captures.stop()
        done, _ = await asyncio.wait({following}, timeout=STOP_SECONDS)
        return bool(done)

    def obey(self, request: ProfileRequest) -> None:
        """Begin what was ordered through the Observer. A refusal is recorded, for there it is read."""
        task = asyncio.get_running_loop().create_task(self._obey(request), name="profile order")
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _obey(self, request: ProfileRequest) -> None:
        try:
            await self.start(request)
        except Exception as error:
            refusal = as_api_error(error)
            words = "the profile could not begin" if refusal is None else f"{refusal.status} {refusal.message}"
            if refusal is None:
                logger.exception("a profile could not begin")
            now = time.monotonic_ns()
            role, pid, rank = self._site
            self._recorder.record(
                ProfileEnded(request.profile, request.kind, role, pid, rank, 0, 0, now, now, [], words)
            )

    async def _order(self, request: ProfileRequest) -> ProfileOrder:
        config = self._config
        name = request.profile or profile_name(request.kind)
        steps = request.steps or config.max_steps
        order = ProfileOrder(
            name,
            request.kind,
            "/",
            request.seconds,
            steps,
            config.delay_steps,
            config.options,
            request.rate_hz,
        )
        check_order(order)
        try:
            path = await asyncio.to_thread(make_directory, self._run_dir, config.directory, name)
        except OSError as error:
            logger.warning("a profile's directory cannot be made: %s", error)
            raise ApiError("the profile's directory cannot be made", "internal_error") from None
        return order._replace(profile=path.name, directory=str(path))

    async def _follow(self, order: ProfileOrder, engine: EngineCalls) -> None:
        """Ask until it is over and written: an idle process records its end when it is asked."""
        deadline = time.monotonic() + order.seconds + WRITE_SECONDS
        with contextlib.suppress(VllmObsError):
            while time.monotonic() < deadline:
                await asyncio.sleep(LOOK_SECONDS)
                if await self._is_over(engine):
                    logger.info("the profile %s is in %s", order.profile, order.directory)
                    return
        logger.warning("the profile %s was not seen to end", order.profile)
        await self._end_own_part()

    async def _end_own_part(self) -> None:
        """Nobody else would if the engine is gone. It is under way until this process's files are written."""
        self._captures.stop()
        deadline = time.monotonic() + WRITE_SECONDS
        while self._captures.is_under_way and time.monotonic() < deadline:
            await asyncio.sleep(WRITTEN_LOOK_SECONDS)
            self._captures.collect()

    async def _is_over(self, engine: EngineCalls) -> bool:
        """Whether all that take part have ended; what ended here is recorded now."""
        self._captures.collect()
        return not await engine.call_utility("is_profiling") and not self._captures.is_under_way

    async def _has_just_ended(self) -> bool:
        """Whether what is followed is over before the next look at it; then it is followed no longer."""
        following, engine = self._following, self._engine
        if following is None or engine is None or not await self._is_over(engine):
            return False
        following.cancel()
        return True

    async def close(self) -> None:
        """Follow nothing any more."""
        tasks = [task for task in (self._following, *self._orders) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _is_profiled(engine: EngineCalls) -> bool:
    with contextlib.suppress(VllmObsError):
        return bool(await engine.call_utility("is_profiling"))
    return False


def read_request(values: dict[str, Any]) -> ProfileRequest:
    """An order in plain values. ValueError or TypeError where it is none."""
    return ProfileRequest(
        str(values["profile"]),
        str(values["kind"]),
        float(values["seconds"]),
        int(values["steps"]),
        float(values.get("rate_hz", DEFAULT_RATE_HZ)),
    )
