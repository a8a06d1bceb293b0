"""The simulation's core: the real one, held to a model of its bounds whenever it takes or refuses a sequence."""

from collections.abc import Callable
from dataclasses import replace

from simulation_books import CoreBooks
from simulation_grammars import SimulatedGrammars
from simulation_room import Room
from simulation_worker import SimulatedExecutor
from simulation_world import World

from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.queue_bound import QueueLimits


class WatchedCore(EngineCore):
    """What is wrong is kept in `wrong`: nothing that is raised here would come out."""

    def __init__(
        self,
        world: World,
        generation: int,
        executor: SimulatedExecutor,
        clock: Callable[[], int],
        grammars: SimulatedGrammars,
    ) -> None:
        config = replace(world.config, generation=generation)
        self.wrong = ""
        self.books = CoreBooks()
        self._world = world
        self._excuse = grammars.excuse
        self._ordered = grammars
        self._limits = QueueLimits.from_config(config)
        super().__init__(config, executor, self.books, clock, grammars)

    def add_request(self, request: EngineCoreRequest) -> None:
        """As ever; who is taken must have found room."""
        room, was_live = self._room(), request.request_id in self.books.live
        self._ordered.asking_id = request.request_id
        super().add_request(request)
        is_taken = request.request_id in self.books.live and not was_live
        if is_taken and room.must_refuse([len(request.prompt_token_ids)]):
            self._note(f"{request.request_id} was taken, and the queue is full")

    def check_queue(self) -> None:
        """The queue is who waits for a first step, and never longer than its bound and what one step takes."""
        assert not self.wrong, self.wrong
        waiting = self.books.waiting
        assert len(self._queue) == len(waiting), f"{len(self._queue)} counted, {len(waiting)} wait"
        room = Room(self._limits, list(waiting.values()), self._world.max_num_seqs)
        assert not waiting or not room.must_refuse(()), f"{len(waiting)} wait: more than may"

    def _reject(self, request: EngineCoreRequest, reason: str, message: str) -> None:
        """Who is refused for want of room finds none by the model either; then that ending may be."""
        may_be = self._room().refusals([len(request.prompt_token_ids)])
        if self.scheduler.num_live >= self._world.max_live:
            may_be.add("under_pressure")
        if reason in may_be:
            self._excuse(request.request_id, reason)
        super()._reject(request, reason, message)

    def _room(self) -> Room:
        num_startable = self._world.max_num_seqs - len(self.scheduler.running)
        is_paused = self.scheduler.pause != PauseState.NONE
        return Room(self._limits, list(self.books.waiting.values()), 0 if is_paused else num_startable)

    def _note(self, wrong: str) -> None:
        self.wrong = self.wrong or wrong
