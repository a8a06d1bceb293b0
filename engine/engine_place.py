"""EnginePlace: one of several engines as their common client sees it, through all its lives."""

import time
from typing import TYPE_CHECKING, Literal

from vllm_obs.engine.balancer import EngineLoad
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, SchedulerStats

if TYPE_CHECKING:
    from vllm_obs.engine.client_async import AsyncMPClient

STATS_SECONDS = 1.0
"""How long the levels that an engine reported are believed while nothing of ours there makes it report more."""
_NOTHING_RUNS = SchedulerStats(0, 0, 0.0, 0)


class EnginePlace:
    """What is open in an engine and how loaded it is. Used from one event loop.

    `ailment` is what somebody who watches it holds against it, empty while all is well: it stands still, or its
    model gives no numbers. Nobody is sent there then, while there is another.
    """

    def __init__(self, client: "AsyncMPClient", was_there: bool = True) -> None:
        self.client = client
        self.was_there = was_there
        """Whether an engine has been here; nobody is told of the loss of one that has not."""
        self.open_ids: dict[str, None] = {}
        self.ailment: Literal["", "stalled", "broken"] = ""
        self.last_sent_at = 0
        """When the sequence was submitted that was sent last (monotonic ns), 0 before."""
        self.cause: str | None = None
        """Why it is not there, once whoever reads the outputs has been told."""
        self._given_up: str | None = None
        self._num_sent = 0
        self._stats = _NOTHING_RUNS
        self._seen_at = 0.0

    @property
    def facts(self) -> EngineFacts:
        """Of the life that is there, or was there last."""
        return self.client.facts

    @property
    def dead_cause(self) -> str | None:
        """Why nothing can be sent to it, None while something can."""
        return self.cause or self._given_up or self.client.dead_cause

    @property
    def is_up(self) -> bool:
        """Whether it can be sent to."""
        return self.dead_cause is None and not self.client.has_stopped

    @property
    def load(self) -> EngineLoad:
        """What is known of its load, of which all that is ours is known at least."""
        stats = self._stats
        if not self.open_ids and time.monotonic() - self._seen_at > STATS_SECONDS:
            stats = _NOTHING_RUNS
        num_open, num_told = len(self.open_ids), stats.num_waiting + stats.num_running
        num_sent = max(min(self._num_sent, num_open), num_open - num_told)
        return EngineLoad(stats.num_waiting, stats.num_running, num_sent, self.is_up and not self.ailment)

    def sending(self, request: EngineCoreRequest) -> None:
        """A sequence is about to be sent."""
        self.open_ids[request.request_id] = None
        self._num_sent += 1
        self.last_sent_at = request.submitted_at

    def ended(self, request_id: str) -> None:
        """It has ended, or is about to be told so."""
        self.open_ids.pop(request_id, None)

    def saw(self, outputs: EngineCoreOutputs) -> None:
        """A step's outputs came."""
        if outputs.stats is not None:
            self._stats, self._num_sent, self._seen_at = outputs.stats, 0, time.monotonic()

    def give_up(self, cause: str) -> None:
        """Nothing is sent any more, whether it lives or not."""
        self._given_up = self._given_up or cause

    def lose(self) -> list[str]:
        """It is gone; the sequences that were open there."""
        self.cause = self.dead_cause or "the engine was shut down"
        lost = list(self.open_ids)
        self.open_ids.clear()
        return lost

    def let_in(self, client: "AsyncMPClient") -> None:
        """Another engine is ready in the place of this one."""
        self.client, self.was_there = client, True
        self.cause = self._given_up = None
        self._stats, self._num_sent, self.ailment = _NOTHING_RUNS, 0, ""
