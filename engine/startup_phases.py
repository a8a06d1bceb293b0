"""StartupPhases: the parts of a process's start, each beginning where the one before it ended."""

import time
from collections.abc import Callable

from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessPhase


class StartupPhases:
    """Records a process's start as phases without gaps: whatever happened since the last one is in the next."""

    def __init__(
        self, role: str, recorder: ProcessRecorder, begun_at: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._role = role
        self._recorder = recorder
        self._clock = clock
        self._ended_at = begun_at

    def end(self, phase: str) -> float:
        """All since the last phase's end was this one, and it ends now; its seconds."""
        begun_at, self._ended_at = self._ended_at, self._clock()
        self._recorder.record(ProcessPhase(self._role, phase, begun_at, self._ended_at))
        return (self._ended_at - begun_at) / 1e9
