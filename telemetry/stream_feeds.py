"""StreamFeeds: the feeds of all engines, told of what happens round by round as long as anybody listens."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

from vllm_obs.telemetry.block_feed import BlockFeed
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_events import EventHub, EventStream, Opening
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.step_feed import StepFeed
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source

ROUNDS_A_STATE_EVENT = 4

_logger = logging.getLogger(__name__)


class StreamFeeds(BaseView):
    """One feed of steps and one of blocks for each engine that somebody listens to, for at most 16 clients each.

    `stalls` gives the stalls that last. While nobody listens there is nothing to tell, and a step costs a look-up.
    """

    def __init__(self, observer: Observer, stalls: Callable[[], Iterable[StallBegun]]) -> None:
        self._observer = observer
        self._stalls = stalls
        self._steps: dict[str, StepFeed] = {}
        self._blocks: dict[str, BlockFeed] = {}
        self.is_heard = False
        """Whether anybody listens, or did at the last round."""
        self.on_heard: Callable[[], None] = lambda: None
        """Is called when somebody begins to listen."""
        self._words: dict[str, str] = {}
        self._num_rounds = 0
        self._num_failures = 0
        self._is_closed = False

    @property
    def num_listeners(self) -> int:
        """Clients of all feeds."""
        return sum(len(feed.hub.clients) for feed in self._feeds())

    def step_closed(self, step: StepFacts) -> None:
        """Keep it for those who listen."""
        feed = self._steps.get(step.engine)
        if feed is not None:
            feed.step_closed(step)

    def lost(self, source: Source, num: int) -> None:
        """Steps may be missing."""
        feed = self._steps.get(source.engine)
        if feed is not None:
            feed.lost()

    def steps(self, label: str, since: int) -> EventStream:
        """The stream of an engine's steps after `since`. InspectError: no such engine (404), full (503)."""
        engine = self._engine(label)
        feed = self._steps.get(label)
        if feed is None:
            feed = self._steps[label] = StepFeed(self._observer, engine)

        def opening() -> AsyncIterator[bytes]:
            self._hear()
            engine = self._engine(label)
            return feed.open(engine, since, self.word_of(engine))

        return self._stream(feed.hub, opening)

    def blocks(self, label: str) -> EventStream:
        """The stream of an engine's blocks. InspectError: no such engine (404), full (503)."""
        self._engine(label)
        feed = self._blocks.setdefault(label, BlockFeed())

        def opening() -> AsyncIterator[bytes]:
            self._hear()
            return feed.open(self._engine(label))

        return self._stream(feed.hub, opening)

    def word_of(self, engine: EngineState) -> str:
        """live, stalled, dead or ended: in a recording everything has ended."""
        if not self._observer.is_live:
            return "ended"
        if engine.is_gone:
            of_engine = (engine.source.role, engine.source.pid)
            processes = self._observer.state.processes.all()
            was_told = any(each.was_told for each in processes if (each.role, each.pid) == of_engine)
            return "ended" if was_told else "dead"
        return "stalled" if any(stall.engine == engine.label for stall in self._stalls()) else "live"

    def tell(self) -> None:
        """One round: tell those who listen what is new."""
        self._num_rounds += 1
        with_state = self._num_rounds % ROUNDS_A_STATE_EVENT == 0
        for label, steps in self._steps.items():
            self._in_feed(steps, partial(self._tell_steps, steps, label, with_state))
        for label, blocks in self._blocks.items():
            self._in_feed(blocks, partial(self._tell_blocks, blocks, label, with_state))
        self.is_heard = self.num_listeners > 0

    def close(self) -> None:
        """End all streams, and begin no other."""
        self._is_closed = True
        for feed in self._feeds():
            feed.hub.close()
            feed.rest()

    def _hear(self) -> None:
        self.is_heard = True
        self.on_heard()

    def _stream(self, hub: EventHub, opening: Opening) -> EventStream:
        if self._is_closed:
            raise InspectError("the Observer is ending", 503)
        if hub.is_full:
            raise InspectError(f"{len(hub.clients)} clients listen already, which is the limit", 503)
        return EventStream(hub, opening)

    def _feeds(self) -> list[StepFeed | BlockFeed]:
        return [*self._steps.values(), *self._blocks.values()]

    def _engine(self, label: str) -> EngineState:
        return engine_of(self._observer.state, label)

    def _tell_steps(self, feed: StepFeed, label: str, with_state: bool) -> None:
        engine = self._engine(label)
        feed.tell(engine)
        word = self.word_of(engine)
        # Whoever watches an engine that stops must not believe for a second that it is idle.
        if with_state or self._words.get(label, word) != word:
            feed.tell_state(word)
        self._words[label] = word

    def _tell_blocks(self, feed: BlockFeed, label: str, with_state: bool) -> None:
        engine = self._engine(label)
        feed.tell(engine)
        if with_state:
            feed.tell_state(self.word_of(engine))

    def _in_feed(self, feed: StepFeed | BlockFeed, tell: Callable[[], None]) -> None:
        """Telemetry may fail: those who listen to this feed may come again, and the others go on."""
        if not feed.hub.clients:
            feed.rest()
            return
        try:
            tell()
        except Exception:
            self._note_failure()
            feed.hub.close()
            feed.rest()

    def _note_failure(self) -> None:
        """There may be one in each round: the first tells enough."""
        self._num_failures += 1
        if self._num_failures == 1:
            _logger.exception("a stream failed; later failures are not told")
