"""The methods that a UTILITY call may name, and nothing else."""

import inspect
from collections.abc import Callable
from typing import Any

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.profile_core import CoreProfiles
from vllm_obs.engine.scheduler import Scheduler


class CoreUtilities:
    """Answers UTILITY calls on a scheduler; arguments and results are plain values."""

    def __init__(self, scheduler: Scheduler, profiles: CoreProfiles) -> None:
        self._scheduler = scheduler
        self._methods: dict[str, Callable[..., Any]] = {
            "ping": lambda: "pong",
            "get_supported_tasks": lambda: ["generate"],
            "reset_prefix_cache": scheduler.kv_cache.reset_prefix_cache,
            "pause_scheduler": self._pause_scheduler,
            "resume_scheduler": self._resume_scheduler,
            "is_paused": lambda: scheduler.pause != PauseState.NONE,
            "is_sleeping": lambda: False,
            "start_profile": profiles.start,
            "stop_profile": profiles.stop,
            "is_profiling": profiles.look,
        }

    def call(self, method: str, args: list[Any]) -> Any:
        """The method's result; RequestError for a method, a number of arguments or a value that is not known."""
        function = self._methods.get(method)
        if function is None:
            raise RequestError(f"There is no utility method {method[:64]!r}.", "method", reason="not_found")
        try:
            inspect.signature(function).bind(*args)
        except TypeError as error:
            raise RequestError(f"{method}: {error}.", "args") from error
        return function(*args)

    def _pause_scheduler(self, mode: str = "abort") -> None:
        """Plan nothing new: `abort` ends all that lives, `wait` lets the running finish, `keep` freezes all."""
        if mode not in ("abort", "wait", "keep"):
            raise RequestError("pause_scheduler knows the modes abort, wait and keep.", "mode")
        self._scheduler.pause = PauseState.ALL if mode == "keep" else PauseState.NO_ADMISSION
        if mode == "abort":
            for request in self._scheduler.live_requests():
                self._scheduler.finish_request(request.request_id, FinishReason.ABORT)

    def _resume_scheduler(self) -> None:
        """Plan everything again."""
        self._scheduler.pause = PauseState.NONE
