"""SimulatedExecutor: synthetic ranks in one process and in virtual time, side by side as processes would be."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.synthetic.simulated_ring import SimulatedRing
from vllm_obs.engine.synthetic.virtual_time import WALL_OFFSET_NS, RankClock, VirtualClock
from vllm_obs.engine.synthetic.worker import SyntheticWorker, WorkerTime
from vllm_obs.engine.worker.memory import size_kv_cache
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, ProcessStarted, WorkerStep

T = TypeVar("T")

TRANSFER_NS = 30_000
"""How long a plan is on its way to a rank; it comes to each rank as much later than to the one before."""


class SimulatedRank(NamedTuple):
    """One rank: its clock within a step, and its ring."""

    clock: RankClock
    ring: SimulatedRing

    @property
    def on_layer(self) -> Callable[[], None]:
        """What it does after each layer."""
        return self.ring.advance if self.ring.is_watched else lambda: None


class SimulatedExecutor:
    """Each rank runs a step on its own clock, from the moment the plan came; the last to end it ends it for all.

    A rank that stands still therefore holds up the step, and its ring shows no progress meanwhile, while those
    of the others show that they are done and wait.
    """

    def __init__(
        self, config: VllmConfig, clock: VirtualClock, ranks: Sequence[SimulatedRank], start_seconds: float
    ) -> None:
        self._config = config
        self._clock = clock
        self._ranks = ranks
        self._start_ns = int(start_seconds * 1e9)
        self._workers = [
            SyntheticWorker(config, number, rank.on_layer, WorkerTime(rank.clock.read, rank.clock.sleep))
            for number, rank in enumerate(ranks)
        ]
        self._plan: StepPlan | None = None
        self._phases: list[tuple[str, float]] = []

    def initialize(self) -> KVCapacity:
        """Let the start-up's time go by, in phases, on every rank."""
        worker = self._workers[0]
        capacity = size_kv_cache(self._config, worker.kv_block_bytes(), worker.available_kv_bytes())
        for rank in self._ranks:
            rank.clock.start(self._clock.now)
            rank.ring.record(started(rank.ring, rank.clock.now))
        for phase, activity, num_parts in (
            ("load weights", Activity.LOADING_MODEL, 7),
            ("kv cache", Activity.SIZING_CACHE, 1),
            ("warm-up", Activity.WARMING_UP, 2),
        ):
            self._pass_phase(phase, activity, self._start_ns * num_parts // 10)
        for rank in self._ranks:
            rank.ring.record(ProcessReady(rank.ring.source.role, rank.ring.source.pid, rank.clock.now))
            rank.ring.doing(Activity.WAITING)
        return capacity

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Run the plan on all ranks; the clock then stands where the last of them ended it."""
        self._plan = plan
        for number, (rank, worker) in enumerate(zip(self._ranks, self._workers, strict=True)):
            rank.clock.start(self._clock.now + TRANSFER_NS * (number + 1))
            rank.ring.heartbeat(rank.clock.now)
            rank.ring.begin_step(plan.step)
            rank.ring.doing(Activity.EXECUTING)
            worker.execute_model(plan)
            if not plan.num_rows:
                rank.ring.doing(Activity.WAITING)
        self._meet()
        self._clock.move_to(self._ranks[0].clock.now + TRANSFER_NS)
        return _done(None)

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Sample on all ranks; the first one's answer counts."""
        assert self._plan is not None, "sample_tokens follows execute_model"
        outputs = [self._sample(number, self._plan, masks) for number in range(len(self._ranks))]
        self._clock.move_to(self._ranks[0].clock.now + TRANSFER_NS)
        return _done(outputs[0])

    def profile(self, order: ProfileOrder | None, is_look: bool = False) -> Future[bool]:
        """No simulated rank has anything to profile."""
        return _done(False)

    def startup_phases(self) -> list[tuple[str, float]]:
        """(name, seconds) of what `initialize` did, in order."""
        return list(self._phases)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """No simulated rank dies, so the callback is never called."""

    def shutdown(self) -> None:
        """There is nothing to end."""

    def _pass_phase(self, phase: str, activity: Activity, num_ns: int) -> None:
        begun_at = self._clock.now
        for rank in self._ranks:
            rank.ring.doing(activity)
        self._clock.move_to(begun_at + num_ns)
        self._phases.append((phase, num_ns / 1e9))
        for rank in self._ranks:
            rank.clock.start(self._clock.now)
            rank.ring.advance()
            rank.ring.record(ProcessPhase(rank.ring.source.role, phase, begun_at, self._clock.now))

    def _meet(self) -> None:
        """Nobody samples before everybody is through."""
        last = max(rank.clock.now for rank in self._ranks)
        for rank in self._ranks:
            rank.clock.start(last)

    def _sample(self, number: int, plan: StepPlan, masks: GrammarMasks | None) -> ModelRunnerOutput:
        rank = self._ranks[number]
        rank.ring.doing(Activity.SAMPLING)
        output = self._workers[number].sample_tokens(masks)
        rank.ring.advance()
        for moments in output.moments:
            rank.ring.record(WorkerStep(output.step, *moments, plan.num_tokens, plan.num_rows))
        rank.ring.doing(Activity.WAITING)
        return output


def started(recorder: SimulatedRing, now: int) -> ProcessStarted:
    """The first record of a process that begins at `now`."""
    return ProcessStarted(recorder.source.role, recorder.source.pid, now, now + WALL_OFFSET_NS)


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
