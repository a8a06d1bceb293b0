"""The clients of a simulated history: they ask, wait as long as they may, and leave in whatever state they are."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from simulation_engine import SimulatedEngine
from simulation_front import SimulatedFront
from simulation_judge import Judge
from simulation_requests import Asked, Traffic
from simulation_wire import Events
from simulation_world import World

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.messages import FinishReason

ABORT_STATES = ("queued", "prefill", "decode", "preempted", "grammar", "last token", "children")


class Clients:
    """All of them, over their front ends. `engine` gives the engine that is there, in which their states show."""

    def __init__(
        self,
        world: World,
        draw: Random,
        events: Events,
        fronts: Sequence[SimulatedFront],
        engine: Callable[[], SimulatedEngine | None],
    ) -> None:
        self.judge = Judge(world)
        self.asked: dict[str, Asked] = {}
        """What was accepted, by the ids of its sequences."""
        self.reached: Counter[str] = Counter()
        self._world = world
        self._draw = draw
        self._events = events
        self._fronts = fronts
        self._engine = engine
        self._poisoned: set[str] = set()

    def order_requests(self) -> int:
        """Have all of the history's requests come; ns until the last does."""
        traffic, at = Traffic(self._world, self._draw), 0
        for number in range(self._world.num_requests):
            at += self._draw.randint(0, 2 * self._world.arrival_ns)
            self._events.after(at, f"r{number} arrives", partial(self._submit, traffic.request(number)))
        return at

    def poison(self, site: str, request_id: str = "") -> None:
        """What stands at the scheduler's fault site: some sequences cannot be admitted."""
        if request_id in self._poisoned:
            self.reached["poison"] += 1
            raise RuntimeError("a planted failure of one sequence")

    def mourn(self, front: SimulatedFront) -> None:
        """A front end hears that the engine has died."""
        for request_id in self.asked:
            self.judge.excuse(request_id, "engine_dead")
        front.engine_died()

    def after_step(self, ended: list[str]) -> None:
        """Now and then somebody leaves, in a state that the seed draws; these have just ended in the core."""
        engine = self._engine()
        if self._draw.random() >= self._world.abort or engine is None:
            return
        state = self._draw.choice(ABORT_STATES)
        found = ended
        if state != "last token":
            live = engine.core.scheduler.live_ids()
            found = [name for name in live if name in self.asked and self._is_in(name, state)]
        if found:
            self._leave(self._draw.choice(found), state)

    def _submit(self, asked: Asked) -> None:
        for request_id in asked.ids:
            if self._draw.random() < self._world.faults.poison:
                self._poisoned.add(request_id)
        self.judge.asked(asked, self._poisoned)
        if not self._fronts[asked.client_index].submit(asked, self._world.max_model_len):
            return
        self.asked |= dict.fromkeys(asked.ids, asked)
        if asked.deadline_ns:
            self._events.after(asked.deadline_ns, f"{asked.name}'s deadline", partial(self._expire, asked))

    def _expire(self, asked: Asked) -> None:
        """A request took longer than it may."""
        failure = RequestFailedError("The request took too long.", "timeout")
        are_queued = all(self._state_of(request_id) == "queued" for request_id in asked.ids)
        ended = self._fronts[asked.client_index].end(asked.ids, FinishReason.ERROR, failure)
        self.reached["deadline while queued" if are_queued else "deadline"] += bool(ended)
        for request_id in ended:
            self.judge.excuse(request_id, "timeout")

    def _leave(self, request_id: str, state: str) -> None:
        asked = self.asked.get(request_id)
        if asked is None:
            return
        ended = self._fronts[asked.client_index].end(asked.ids, FinishReason.ABORT)
        self.reached[f"abort: {state}"] += request_id in ended
        self.judge.aborted(ended)

    def _is_in(self, request_id: str, state: str) -> bool:
        if state == "children":
            return self.asked[request_id].params.n > 1
        return self._state_of(request_id) == state

    def _state_of(self, request_id: str) -> str:
        engine = self._engine()
        return "" if engine is None else engine.state_of(request_id)
