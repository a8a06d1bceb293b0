"""CoreProfiles: how an EngineCore takes part in profiles, and passes their orders on to its workers."""

import os
from typing import Any

from vllm_obs.engine.codec import read_fields, write_fields
from vllm_obs.engine.codec_arrays import ArrayReader
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.engine_titles import engine_title
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.profile_captures import CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_kinds import PROCESS_KINDS
from vllm_obs.engine.profile_order import ProfileOrder, check_order
from vllm_obs.telemetry.recorder import Recorder

RANK_SECONDS = 2.0
"""How long a rank may take to begin or to end."""


class CoreProfiles:
    """Called between steps, from the core's loop. At most one profile is under way."""

    def __init__(self, executor: Executor, recorder: Recorder, engine_index: int = 0) -> None:
        self._executor = executor
        site = CaptureSite(engine_title(engine_index), os.getpid())
        self._captures = ProcessCaptures(site, recorder, PROCESS_KINDS)
        self._is_under_way = False

    def start(self, values: list[Any]) -> bool:
        """Begin the profile that `order_values` made these values of. RequestError when one is under way."""
        order = _order(values)
        if self.look():
            raise RequestError("a profile is under way already", reason="conflict")
        return self._pass_on(order)

    def stop(self) -> bool:
        """End the profile that is under way, if any; its files are written meanwhile."""
        return self._pass_on(None)

    def look(self) -> bool:
        """Whether a profile is under way: not over, or not written."""
        return self._pass_on(None, is_look=True)

    def _pass_on(self, order: ProfileOrder | None, is_look: bool = False) -> bool:
        if is_look and not self._is_under_way:
            return False
        is_ours = self._captures.obey(order, is_look)
        try:
            is_theirs = self._executor.profile(order, is_look).result(RANK_SECONDS)
        except TimeoutError:
            raise RequestError(
                f"the workers have not answered within {RANK_SECONDS:g} s", reason="timeout"
            ) from None
        self._is_under_way = is_ours or is_theirs
        return self._is_under_way


def order_values(order: ProfileOrder) -> list[Any]:
    """An order as an argument of a UTILITY call."""
    return [list(value) if isinstance(value, tuple) else value for value in write_fields(order)]


def _order(values: list[Any]) -> ProfileOrder:
    try:
        order: ProfileOrder = read_fields(ProfileOrder, values, ArrayReader([]))
    except WireError as error:
        raise RequestError(f"the order of a profile cannot be read: {error}") from None
    check_order(order)
    return order
