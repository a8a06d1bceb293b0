"""FailureStreak: how many steps failed in a row, and when that is the engine's end."""

from vllm_obs.engine.errors import EngineDeadError

MAX_FAILED_STEPS = 3


class FailureStreak:
    """A step that gave somebody a token ends it."""

    def __init__(self) -> None:
        self._num_failed = 0

    def end(self) -> None:
        """A step worked."""
        self._num_failed = 0

    def count(self, told: str, cause: Exception | None = None) -> None:
        """One more failed, with what is told. EngineDeadError when it was the last that may."""
        self._num_failed += 1
        if self._num_failed >= MAX_FAILED_STEPS:
            raise EngineDeadError(f"{MAX_FAILED_STEPS} steps failed in a row, the last with {told}") from cause
