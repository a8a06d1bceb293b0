"""StepFeed: one engine's steps as they close, encoded once for all who listen."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from vllm_obs.telemetry.binding_limit import binding_limit
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_events import EventHub, event_bytes
from vllm_obs.telemetry.inspect_steps import floor_ratio
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import EngineDescribed
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_phases import slowest_way
from vllm_obs.telemetry.step_rows import StepRows
from vllm_obs.telemetry.stream_numbers import StreamNumbers
from vllm_obs.telemetry.under_way import under_way_view

NUM_NEWEST = 300
"""So many steps a client begins with that does not say what it has."""
MAX_KEPT = 2000
"""At most so many steps after the one that a client has."""
STEPS_AN_EVENT = 100
MAX_NEW_STEPS = 512
"""Of more that close between two rounds the oldest are skipped, and counted."""
MAX_QUEUED = 64
NS = 1e9


class StepFeed:
    """Steps of the engine that lives under a label, also of the next one after it died. Costs nothing unheard.

    Events: `hello` (of which engine: forget all names), `steps`, `gone` (steps that nobody heard of), `state`.
    """

    def __init__(self, observer: Observer, engine: EngineState) -> None:
        self.hub = EventHub(MAX_QUEUED)
        self._observer = observer
        self._numbers = StreamNumbers()
        self._closed: deque[StepFacts] = deque(maxlen=MAX_NEW_STEPS)
        self._num_skipped = 0
        self._begin(engine)

    def step_closed(self, step: StepFacts) -> None:
        """A step of an engine with this label is over."""
        if self.hub.clients:
            self._num_skipped += len(self._closed) == MAX_NEW_STEPS
            self._closed.append(step)

    def lost(self) -> None:
        """Records of the engine are missing from here on."""
        self._is_lossy = True
        self._rows.lost()

    def open(self, engine: EngineState, since: int, word: str) -> AsyncIterator[bytes]:
        """What a client that has steps up to `since` (-1: none) gets first; `tell` follows from this moment on."""
        if self.hub.clients:
            self.tell(engine)
        else:
            self._begin(engine)
        history = engine.steps
        kept = [step for step in history if step.step > since and step.is_closed]
        steps = kept[-MAX_KEPT if since >= 0 else -NUM_NEWEST :]
        first = [self._event("hello", self._hello())]
        num_gone = history.oldest_step - since - 1 if since >= 0 and history.last is not None else 0
        if num_gone > 0:
            first.append(self._event("gone", {"num_gone": num_gone}))
        num_skipped = len(kept) - len(steps) if since >= 0 else 0
        return self._opening(first, steps, num_skipped, self._event("state", self._state(word)))

    def tell(self, engine: EngineState) -> None:
        """Send what has closed since; `engine` is the one that has the label now."""
        steps = list(self._closed)
        self._closed.clear()
        if engine is not self._engine:
            self._send([step for step in steps if engine.steps.get(step.step) is not step])
            steps = [step for step in steps if engine.steps.get(step.step) is step]
        if engine is not self._engine or engine.described != self._described:
            self._begin(engine)
            self.hub.publish("hello", self._last_step, self._hello())
        self._send(steps)
        self._numbers.forget(engine.builder.roster.ledgers.__contains__)
        if len(self._rows) > len(self._numbers):
            self._rows.forget_unnamed()

    def tell_state(self, word: str) -> None:
        """Send how the engine is, so that listeners know that they are told of whatever happens."""
        self.hub.publish("state", self._last_step, self._state(word))

    def rest(self) -> None:
        """Nobody listens."""
        self._closed.clear()
        self._numbers.forget_all()

    def _begin(self, engine: EngineState) -> None:
        self._engine = engine
        self._described: EngineDescribed | None = engine.described
        self._numbers.forget_all()
        self._rows = StepRows(self._find, self._numbers)
        self._told = self._numbers.next
        self._closed.clear()
        self._num_skipped = 0
        self._newest = max((step.step for step in engine.steps if step.is_closed), default=0)
        self._is_lossy = False

    @property
    def _last_step(self) -> int:
        last = self._engine.steps.last
        return last.step if last is not None else 0

    def _event(self, name: str, content: Any) -> bytes:
        return event_bytes(name, self._last_step, content)

    def _find(self, request_id: str) -> SequenceLedger | None:
        in_core = self._engine.builder.roster.ledgers.get(request_id)
        return in_core or self._observer.state.book.known(request_id)

    async def _opening(
        self, first: list[bytes], steps: list[StepFacts], num_skipped: int, last: bytes
    ) -> AsyncIterator[bytes]:
        """In pieces, between which others get their turn. Rows are read anew: those of the feed are further on."""
        for event in first:
            yield event
        rows, told = StepRows(self._find, self._numbers), 1
        for begin in range(0, max(1, len(steps)), STEPS_AN_EVENT):
            piece = [step_row(step, rows) for step in steps[begin : begin + STEPS_AN_EVENT]]
            names = self._numbers.names(told)
            told = self._numbers.next
            yield self._event("steps", {"names": names, "num_skipped": num_skipped, "steps": piece})
            num_skipped = 0
            await asyncio.sleep(0)
        yield last

    def _send(self, steps: list[StepFacts]) -> None:
        if not steps:
            return
        num_gone = self._count_gone(max(step.step for step in steps))
        if num_gone:
            self.hub.publish("gone", self._last_step, {"num_gone": num_gone})
        rows = [step_row(step, self._rows) for step in steps]
        content = {"names": self._numbers.names(self._told), "num_skipped": self._num_skipped, "steps": rows}
        self._told = self._numbers.next
        self._num_skipped = 0
        self.hub.publish("steps", self._last_step, content)

    def _count_gone(self, newest: int) -> int:
        """After a loss: the steps up to the newest that were planned unheard. Those still open will be told."""
        before, self._newest = self._newest, max(self._newest, newest)
        if not self._is_lossy or newest <= before:
            return 0
        self._is_lossy = False
        num_known = sum(before < step.step <= newest for step in self._engine.steps)
        return max(0, newest - before - num_known)

    def _hello(self) -> dict[str, Any]:
        observer, engine, described = self._observer, self._engine, self._described
        now = observer.now()
        return {
            "engine": engine.label,
            "pid": engine.source.pid,
            "run": observer.run,
            "is_live": observer.is_live,
            "max_num_batched_tokens": described.max_num_batched_tokens if described else 0,
            "max_num_seqs": described.max_num_seqs if described else 0,
            "num_blocks": described.num_blocks if described else 0,
            "block_size": described.block_size if described else 0,
            "clock": {"monotonic_at": now, "wall_at": observer.wall_offset + now},
        }

    def _state(self, word: str) -> dict[str, Any]:
        last = self._engine.steps.last
        age = max(0, self._observer.now() - last.over_at) / NS if last is not None else None
        return {"state": word, "age_seconds": age, "under_way": under_way_view(self._engine)}


def step_row(step: StepFacts, rows: StepRows) -> list[Any]:
    """A step as the stream has it; moments are monotonic ns. Of several ranks the slowest of each stage."""
    planned, answered = step.planned, step.answered
    worker = slowest_way(step.stages) if step.workers else None
    ratio = floor_ratio(step)
    return [
        planned.step,
        planned.schedule_begun_at,
        planned.schedule_ended_at,
        answered.executed_at if answered else None,
        answered.sampled_at if answered else None,
        answered.updated_at if answered else None,
        planned.num_running,
        planned.num_waiting,
        planned.head_reason,
        step.limit or binding_limit(planned),
        planned.num_active_blocks,
        planned.num_cached_blocks,
        planned.num_free_blocks,
        len(planned.preempted_ids),
        round(ratio, 3) if ratio is not None else None,
        worker.prepared_at if worker else None,
        worker.forwarded_at if worker else None,
        worker.sample_begun_at if worker else None,
        step.failed.error if step.failed else "",
        rows.of(step),
        worker.received_at if worker else None,
        worker.sampled_at if worker else None,
    ]
