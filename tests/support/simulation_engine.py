"""One life of the simulation's engine: the real core and its loop between encoded messages."""

from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from random import Random
from typing import Any

import zmq
from simulation_core import WatchedCore
from simulation_grammars import SimulatedGrammar, SimulatedGrammars
from simulation_wire import Frames
from simulation_worker import Excuse, SimulatedExecutor
from simulation_world import World

from vllm_obs.engine.core_io import CoreAddress, CoreInput, Dropped, Inbox, Signal
from vllm_obs.engine.core_proc import EngineCoreProc
from vllm_obs.engine.messages import EngineCoreRequest, RequestType
from vllm_obs.engine.request import RequestStatus
from vllm_obs.engine.wire import FrameEncoder


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
        self.grammars = SimulatedGrammars(world, draw, excuse, on_order)
        self.core = WatchedCore(world, generation, self.executor, clock, self.grammars)
        self.books = self.core.books
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
