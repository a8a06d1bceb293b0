"""Simulation: a seed is a history of clients, wires, faults and engines, checked after every event."""

import logging
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from unittest.mock import patch

from simulation_checks import check_core, check_idle
from simulation_clients import Clients
from simulation_engine import SimulatedEngine, SimulatedGrammar
from simulation_front import SimulatedFront
from simulation_wire import FROM_ENGINE, TO_ENGINE, Channel, Events, Frames, Wire
from simulation_world import MS, World, drawn_world

from vllm_obs.engine import core_admission, step_planner
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.messages import UtilityCall

NUM_LAST_WORDS = 25
"""So many events are told of a history that broke."""
LATE_NS = 10 * MS
"""How long after the message of its end has come a sequence may still be in the engine: a few steps."""
MAX_EVENTS = 20_000
"""More than that, and a history does not end."""


class BrokenHistoryError(AssertionError):
    """What did not hold, in which history, and how to see it again."""


@dataclass
class Outcome:
    """What a history came to: which of the interesting states it reached and how often, and its size."""

    reached: Counter[str]
    num_events: int
    num_steps: int
    most_losses: int


def simulate(seed: int, is_ahead: bool | None = None) -> Outcome:
    """The history of a seed; BrokenHistoryError when something does not hold.

    Whether the core begins steps ahead is the seed's choice too, unless it is said.
    """
    simulation = Simulation(seed, Random(f"{seed} ahead").random() < 0.5 if is_ahead is None else is_ahead)
    try:
        with simulation.quiet():
            simulation.run()
    except Exception as error:
        told = "\n  ".join(simulation.log)
        raise BrokenHistoryError(
            f"seed {seed}: {type(error).__name__}: {error}\n  {told}\n{simulation.world}\n"
            f"See it again: VLLM_OBS_SIMULATION_SEEDS={seed} pytest tests/simulation"
        ) from error
    return simulation.outcome()


class Simulation:
    """One history. Whatever is random comes from the seed, so it is the same each time."""

    def __init__(self, seed: int, is_ahead: bool) -> None:
        self._draw = Random(seed)
        world = drawn_world(self._draw)
        self.world: World = replace(world, is_ahead=is_ahead and world.num_stages == 1)
        self.log: deque[str] = deque(maxlen=NUM_LAST_WORDS)
        self._events = Events()
        self._wire = Wire(self._events, self._draw, self.world.max_delay_ns)
        self._fronts = [
            SimulatedFront(index, self.world.config, self._events.tick, self._send_to_engine)
            for index in range(self.world.num_clients)
        ]
        self._clients = Clients(self.world, self._draw, self._events, self._fronts, lambda: self._engine)
        self._judge = self._clients.judge
        self._reached: Counter[str] = Counter()
        self._generation = 0
        self._engine: SimulatedEngine | None = None
        self._has_turn = False
        self._free_at = 0
        self._num_events = self._num_steps = self._most_losses = 0

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Without the product's log lines, and with this history's poison and limit in their places."""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with (
                patch.object(step_planner, "maybe_fault", self._clients.poison),
                patch.object(core_admission, "MAX_LIVE_REQUESTS", self.world.max_live),
            ):
                yield
        finally:
            logging.disable(before)

    def run(self) -> None:
        """From the first engine's start until nothing is left to happen."""
        self._start_engine()
        self._order_history()
        while len(self._events):
            name, act = self._events.next()
            self.log.append(f"{self._events.now / MS:.3f} ms {name}")
            act()
            self._wake()
            self._check()
        self._check_end()

    def outcome(self) -> Outcome:
        """What it came to."""
        self._gather()
        for front in self._fronts:
            self._reached += front.reached
        self._reached += self._clients.reached
        return Outcome(+self._reached, self._num_events, self._num_steps, self._most_losses)

    def _order_history(self) -> None:
        """What comes from outside: requests, deaths, pauses."""
        world, draw, at = self.world, self._draw, self._clients.order_requests()
        for _ in range(world.faults.num_kills):
            self._events.after(draw.randint(0, at + 30 * MS), "the engine is killed", self._kill)
        for _ in range(world.faults.num_pauses):
            self._events.after(draw.randint(0, at + 10 * MS), "a pause", self._pause)

    def _start_engine(self) -> None:
        self._engine = SimulatedEngine(
            self.world, self._draw, self._generation, self._events.tick, self._judge.excuse, self._compile
        )
        for front in self._fronts:
            front.attach(self._generation, self.world.num_blocks)

    def _compile(self, grammar: SimulatedGrammar) -> None:
        """A grammar is ordered; it is there some time later, and the engine hears of it."""
        engine = self._engine

        def ready() -> None:
            grammar.is_ready = True
            if engine is not None:
                engine.grammars.on_ready()

        self._events.after(self._draw.randint(0, 20 * MS), "a grammar is compiled", ready)

    def _kill(self) -> None:
        """The engine's process is gone at once; each front end hears of it later, and then it is started again."""
        if self._engine is None:
            return
        self._gather()
        self._reached["restart"] += 1
        self._wire.cut(self._generation)
        self._engine, self._has_turn = None, False
        self._generation += 1
        for front in self._fronts:
            delay = self._draw.randint(0, 5 * MS)
            self._events.after(
                delay, f"front {front.client_index} hears of the death", partial(self._clients.mourn, front)
            )
        self._events.after(self._draw.randint(5, 15) * MS, "the engine is started again", self._start_engine)

    def _pause(self) -> None:
        """Somebody pauses the scheduler, and lets it go on later."""
        mode = self._draw.choice(("abort", "wait", "keep"))
        self._judge.are_all_aborted |= mode == "abort"
        self._reached[f"pause: {mode}"] += 1
        self._call("pause_scheduler", mode)
        self._events.after(
            self._draw.randint(0, 20 * MS), "the end of a pause", partial(self._call, "resume_scheduler")
        )

    def _call(self, method: str, *args: str) -> None:
        front = self._fronts[0]
        front.tell(UtilityCall(0, front.generation, 1, method, list(args)))

    def _send_to_engine(self, client_index: int, generation: int, frames: Frames) -> None:
        channel = Channel(TO_ENGINE, client_index, generation)
        self._wire.send(channel, frames, partial(self._deliver, client_index))
        if self._draw.random() < self.world.faults.stray:
            self._stray()

    def _deliver(self, client_index: int, frames: Frames) -> None:
        """A message arrives where the engine listens, whichever life of it that is by now."""
        if self._engine is not None:
            self._engine.deliver(client_index, frames)

    def _stray(self) -> None:
        """An old message comes again on a way of its own, or a broken one."""
        if not self._wire.kept:
            return
        channel, frames = self._draw.choice(self._wire.kept)
        if self._draw.random() < 0.3:
            frames = [*frames[:1], frames[1][: self._draw.randrange(len(frames[1]))], *frames[2:]]
        delay = self._draw.randint(0, 10 * MS)
        if channel.direction == TO_ENGINE:
            self._events.after(delay, "a stray message", partial(self._deliver, channel.client_index, frames))
        elif channel.generation < self._generation:
            front = self._fronts[channel.client_index]
            self._events.after(delay, "a stray output", partial(self._receive_old, front, channel, frames))

    def _receive_old(self, front: SimulatedFront, channel: Channel, frames: Frames) -> None:
        """A connection gives nothing twice: only one's that this front end has given up may come again."""
        if front.generation != channel.generation:
            front.receive(frames)

    def _wake(self) -> None:
        """The engine's loop goes round as soon as it can, if it has something to do."""
        if self._engine is not None and not self._has_turn and self._engine.can_turn:
            self._has_turn = True
            self._events.after(
                max(0, self._free_at - self._events.now), "a turn", partial(self._turn, self._engine)
            )

    def _turn(self, engine: SimulatedEngine) -> None:
        if engine is not self._engine:
            return
        self._has_turn = False
        self._free_at = self._events.now + self._draw.randint(MS // 5, 3 * MS)
        try:
            sent = engine.turn()
        except EngineDeadError as error:
            if not (self.world.faults.dead or self.world.faults.failing):
                raise AssertionError("the engine died by itself") from error
            self._reached["death in a step"] += 1
            self._kill()
            return
        ended: list[str] = []
        for client_index, frames, ids in sent:
            channel = Channel(FROM_ENGINE, client_index, engine.generation)
            self._wire.send(channel, frames, self._fronts[client_index].receive)
            ended += ids
        self._clients.after_step(ended)

    def _check(self) -> None:
        """After every event."""
        self._num_events += 1
        assert self._num_events < MAX_EVENTS, "the history does not end"
        for front in self._fronts:
            front.check()
        if self._engine is not None:
            engine, core = self._engine, self._engine.core
            check_core(core, self.world.max_num_seqs)
            core.check_queue()
            num_planted, num_failed = len(engine.executor.failed_steps), core.counters.num_failed_steps
            # Of a step that fails behind another in a pipeline nobody hears: it was given up with that one.
            num_awaited = num_planted - num_failed
            is_right = num_awaited >= 0 if self.world.num_stages > 1 else 0 <= num_awaited <= self.world.is_ahead
            assert is_right, "a step failed by itself"
            assert engine.books.live == set(core.scheduler.live_ids()), "the records and the scheduler disagree"
            if not self.world.faults.stray:  # an old ADD that comes again is run for nobody
                self._check_departed(engine.books.live)

    def _check_departed(self, live: set[str]) -> None:
        """Who has ended for its client does not run for longer than a message takes."""
        latest = self._events.now - self.world.max_delay_ns - LATE_NS
        for front in self._fronts:
            for request_id in live & front.departed_at.keys():
                assert front.departed_at[request_id] > latest, f"{request_id} runs on for nobody"

    def _check_end(self) -> None:
        """Everything is over: nobody is left, and everyone has got one ending that may be."""
        if self._engine is not None:
            check_idle(self._engine.core, self._engine.executor.row_ids)
        for front in self._fronts:
            self._reached += self._judge.check_end(front)

    def _gather(self) -> None:
        """Add up what the engine that is there has reached."""
        if self._engine is None:
            return
        engine = self._engine
        self._reached += engine.books.reached + engine.executor.reached
        self._reached.update({f"dropped: {reason}": count for reason, count in engine.dropped.items()})
        self._reached["duplicate ADD"] += engine.core.counters.num_duplicate_adds
        self._num_steps += engine.books.num_steps
        self._most_losses = max(self._most_losses, engine.books.most_losses)
