"""Headers of a run's rings that a test sets."""

from pathlib import Path

from vllm_obs.telemetry.watchdog_headers import RunHeaders
from vllm_obs.telemetry.watchdog_rule import ProcessLook


class FakeHeaders(RunHeaders):
    """Headers that somebody else sets."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))
        self.looks: list[ProcessLook] = []

    def look(self) -> list[ProcessLook]:
        return self.looks
