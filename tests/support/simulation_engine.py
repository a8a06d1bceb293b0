"""One life of the simulation's engine: the real core and its loop between encoded messages."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from random import Random
from typing import Any

import zmq
from simulation_books import CoreBooks
from simulation_model import mask_word
from simulation_wire import Frames
from simulation_worker import Excuse, SimulatedExecutor
from simulation_world import World

from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.core_io import CoreAddress, CoreInput, Dropped, Inbox, Signal
from vllm_obs.engine.core_proc import EngineCoreProc
from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.messages import EngineCoreRequest, RequestType
from vllm_obs.engine.request import RequestStatus
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.engine.wire import FrameEncoder


class SimulatedGrammar:
    """Any `length` tokens that are even (odd, if the length is); ready when the history says so.

    `fault` is where it breaks: begin, mask, accept, or empty for nowhere.
    """

    def __init__(self, length: int, fault: str) -> None:
        self.is_ready = False
        self._length = self._num_left = length
        self._fault = fault

    @property
    def is_over(self) -> bool:
        return self._num_left <= 0

    def begin(self) -> None:
        if self._fault == "begin":
            raise RequestError("There is no such grammar.", reason="unsupported")

    def write_mask(self, words: Any) -> None:
        if self._fault == "mask":
            raise RuntimeError("a planted failure of a mask")
        words[:] = mask_word(self._length)

    def accept(self, token_id: int) -> None:
        self._num_left -= 1
        if token_id % 2 != self._length % 2 or self._fault == "accept":
            raise RequestFailedError("The output left its grammar.")


class SimulatedGrammars(GrammarBook):
    """The real book, whose grammars are compiled by nobody: `on_order` is told of each."""

    def __init__(self, world: World, draw: Random, on_order: Callable[[SimulatedGrammar], None]) -> None:
        super().__init__(world.config.model)
        self._world = world
        self._draw = draw
        self._on_order = on_order
        self.num_faults = 0

    def order(self, grammar: str) -> SimulatedGrammar:
        is_broken = self._draw.random() < self._world.faults.grammar
        made = SimulatedGrammar(
            int(grammar.partition(":")[2]), self._draw.choice(("begin", "mask", "accept")) if is_broken else ""
        )
        self.num_faults += is_broken
        self._on_order(made)
        return made


class _Socket:
    """What a message looks like to who reads it frame by frame."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def recv(self, flags: int = 0) -> bytes:
        if not self.frames:
            raise zmq.Again
        return self.frames.pop(0)

    def get(self, option: int) -> bool:
        assert option == zmq.RCVMORE
        return bool(self.frames)


class SimulatedInput:
    """The reading half of CoreInput over messages that a wire brings."""

    _take = CoreInput._take

    def __init__(self, address: CoreAddress) -> None:
        self._address = address
        self._socket = _Socket()

    def take(self, client_index: int, frames: Frames) -> Any:
        """The message, or what stands for one that was dropped."""
        self._socket.frames = [bytes(frame) for frame in frames]
        return self._take(self._socket, client_index)


class SimulatedEngine:
    """An engine of some generation; `turn` is what its loop does once it has waited for something to do."""

    def __init__(
        self,
        world: World,
        draw: Random,
        generation: int,
        clock: Callable[[], int],
        excuse: Excuse,
        on_order: Callable[[SimulatedGrammar], None],
    ) -> None:
        self.generation = generation
        self.executor = SimulatedExecutor(world, draw, excuse)
        self.books = CoreBooks()
        self.grammars = SimulatedGrammars(world, draw, on_order)
        config = replace(world.config, generation=generation)
        self.core = EngineCore(config, self.executor, self.books, clock, self.grammars)
        self.inbox: Inbox = SimpleQueue()
        address = CoreAddress(0, generation, 1, [("", "")] * world.num_clients)
        self._loop = EngineCoreProc(self.core, address, self.inbox, self.books)
        self._input = SimulatedInput(address)
        self._encoder = FrameEncoder()
        self.core.on_grammar(lambda: self.inbox.put(Signal(RequestType.WAKEUP, "")))
        self.reached: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    @property
    def can_turn(self) -> bool:
        """Whether its loop has something to do, or to take in."""
        return not self.inbox.empty() or self.core.has_work()

    def deliver(self, client_index: int, frames: Frames) -> None:
        """A message arrives in its inbox."""
        item = self._input.take(client_index, frames)
        if isinstance(item, Dropped):
            self.dropped[item.reason] += 1
        else:
            assert item.generation == self.generation, "a message to another life of the engine"
        if isinstance(item, EngineCoreRequest):
            self.books.delivered(item.request_id)
        self.inbox.put(item)

    def turn(self) -> list[tuple[int, Sequence[Any], list[str]]]:
        """One turn of its loop; (client, frames, ids that ended) of each message that goes out.

        EngineDeadError and the like are the end of the process.
        """
        self._loop.turn()
        sent = []
        for client_index, outbox in enumerate(self._loop.outboxes):
            while not outbox.empty():
                outputs = outbox.get()
                rows = list(zip(outputs.request_ids, outputs.num_new_tokens, outputs.finish_reasons, strict=True))
                for name, num_tokens, reason in rows:
                    self.books.told(name, num_tokens, reason >= 0)
                ended = [name for name, _, reason in rows if reason >= 0]
                frames = [bytes(frame) for frame in self._encoder.outputs(outputs)]
                sent.append((client_index, frames, ended))
        return sent

    def state_of(self, request_id: str) -> str:
        """In which state the core has a sequence; empty where it has none."""
        request = self.core.scheduler.find(request_id)
        if request is None:
            return ""
        if request.grammar is not None and request_id in self.core.scheduler._state.unready:
            return "grammar"
        if request.status == RequestStatus.WAITING:
            return "queued"
        if request.status == RequestStatus.PREEMPTED:
            return "preempted"
        return "decode" if request.num_output_tokens else "prefill"
