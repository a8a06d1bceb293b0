"""Simulation: a whole run, with the real core over synthetic ranks, in virtual time and one thread."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.synthetic.regimes import SYNTHETIC_LIMITS, Arrival, Stall, SyntheticLimits, blend
from vllm_obs.engine.synthetic.simulated_executor import SimulatedExecutor, SimulatedRank, started
from vllm_obs.engine.synthetic.simulated_front_end import SimulatedFrontEnd
from vllm_obs.engine.synthetic.simulated_ring import SimulatedHeader, SimulatedRing, SimulatedSource
from vllm_obs.engine.synthetic.virtual_time import BEGUN_AT, Interval, RankClock, VirtualClock
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, Record, TelemetrySet

API_SERVER = SimulatedSource("APIServer_0", 1001, 11, "")
ENGINE_CORE = SimulatedSource("EngineCore_DP0", 1002, 12, "0")
FIRST_WORKER_PID = 1003

Sink = Callable[[SimulatedSource, Record], None]
OnRound = Callable[[int, dict[str, SimulatedHeader]], None]
"""Told the moment (monotonic ns) and what each process's ring header shows then, by role."""


@dataclass(frozen=True)
class SimulationOptions:
    """The engine that is simulated. `step_time` are fields of StepTimeModel that differ from its own.

    With one rank the worker lives in the core's process. A step takes up to `jitter` (a share) longer than its
    model says. Rounds, in which a watcher looks at the run, are `round_seconds` apart.
    """

    limits: SyntheticLimits = SYNTHETIC_LIMITS
    step_time: dict[str, Any] = field(default_factory=dict)
    num_ranks: int = 2
    start_seconds: float = 2.0
    jitter: float = 0.03
    round_seconds: float = 0.25


DEFAULT = SimulationOptions()


def simulate(
    regimes: Sequence[str], seed: int = 0, seconds: float = 60.0, options: SimulationOptions = DEFAULT
) -> list[tuple[SimulatedSource, Record]]:
    """What a run under these regimes at once records, in order of time; arrivals end after so many seconds.

    The same for the same arguments. The run goes on until every request has ended.
    """
    facts: list[tuple[SimulatedSource, Record]] = []
    arrivals, stalls = blend(regimes, seed, seconds)
    simulation = Simulation(arrivals, stalls, options, lambda source, record: facts.append((source, record)))
    simulation.run(seconds)
    return facts


def synthetic_config(options: SimulationOptions = DEFAULT) -> VllmConfig:
    """The configuration of the engine that is simulated."""
    limits = options.limits
    args = EngineArgs(
        load_format="synthetic",
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_gpu_blocks_override=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        distributed_executor_backend="mp" if options.num_ranks > 1 else "uni",
        model_loader_extra_config={**options.step_time, "num_ranks": options.num_ranks},
    )
    return args.create_engine_config()


class Simulation:
    """The processes of a run as one program: an API server, a core, and ranks, each with its ring.

    Records go to `sink` in order of time, and never earlier than the moment the run has come to; `on_round` is
    told between them, and headers are kept for it only. A stall stops the last rank.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        stalls: Sequence[Stall] = (),
        options: SimulationOptions = DEFAULT,
        sink: Sink = lambda source, record: None,
        on_round: OnRound | None = None,
    ) -> None:
        self.clock = VirtualClock(int(options.round_seconds * 1e9))
        self._options = options
        self._sink = sink
        self._on_round = on_round
        self._pending: list[tuple[int, int, SimulatedSource, Record]] = []
        self._num_written = 0
        self._serving_at = BEGUN_AT + int(options.start_seconds * 1e9) + 100_000_000
        self._rings = [self._ring(source, self._now) for source in (API_SERVER, ENGINE_CORE)]
        self._ranks = self._make_ranks(stalls)
        self._front = SimulatedFrontEnd(API_SERVER, self._serving_at, arrivals, self._write)
        self._core = self._start()

    @property
    def headers(self) -> dict[str, SimulatedHeader]:
        """What the ring header of each process shows now, by role."""
        now = self.clock.now
        headers = {ring.source.role: ring.header_at(now) for ring in self._all_rings()}
        for rank in self._ranks:
            header = rank.ring.header_at(now)
            headers[header.role] = header._replace(is_stopped=rank.clock.is_stopped(now))
        return headers

    def run(self, seconds: float) -> None:
        """Serve what arrives until so many seconds after the start are over and every request has ended."""
        until = self._serving_at + int(seconds * 1e9)
        _, ring = self._rings
        while self._step():
            continue
        ring.doing(Activity.WAITING)
        self.clock.move_to(until)
        self._flush(until * 2)

    def _step(self) -> bool:
        """One turn of the core's loop; False when there is nothing left to do."""
        front, clock, (_, ring) = self._front, self.clock, self._rings
        front.submit_until(clock.now)
        ring.heartbeat(clock.now)
        if not self._core.has_work():
            next_at = front.next_arrival_at
            if next_at is None:
                return False
            ring.doing(Activity.WAITING)
            clock.move_to(next_at)
        ring.doing(Activity.RECEIVING)
        for request in front.requests():
            self._core.add_request(request)
        outputs = self._core.step()
        ring.doing(Activity.SENDING)
        for message in outputs.values():
            front.take(message)
        return True

    def _make_ranks(self, stalls: Sequence[Stall]) -> list[SimulatedRank]:
        rng, num_ranks = random.Random(0), self._options.num_ranks
        stopped = [self._interval(stall) for stall in stalls]
        ranks = []
        for number in range(num_ranks):
            intervals = stopped if number == num_ranks - 1 else []
            clock = RankClock(intervals, lambda: 1 + self._options.jitter * rng.random())
            source = SimulatedSource(f"Worker_TP{number}", FIRST_WORKER_PID + number, 13 + number, "0")
            source = source if num_ranks > 1 else ENGINE_CORE
            ranks.append(SimulatedRank(clock, self._ring(source, _reader(clock))))
        return ranks

    def _ring(self, source: SimulatedSource, now: Callable[[], int]) -> SimulatedRing:
        return SimulatedRing(source, now, self._write, is_watched=self._on_round is not None)

    def _interval(self, stall: Stall) -> Interval:
        begin = self._serving_at + int(stall.at_seconds * 1e9)
        return begin, begin + int(stall.seconds * 1e9)

    def _start(self) -> EngineCore:
        """Bring all processes up; what arrives does so from `_serving_at` on."""
        config, clock = synthetic_config(self._options), self.clock
        clock.before_move = self._front.submit_until
        clock.on_round = self._take_round
        for ring in self._rings:
            ring.record(started(ring, clock.now))
        self._rings[0].record(TelemetrySet(0, 1.0, clock.now))
        executor = SimulatedExecutor(config, clock, self._ranks, self._options.start_seconds)
        core = EngineCore(config, executor, self._rings[1], clock.read)
        for ring, phase in zip(self._rings, ("wait for engine", "make core"), strict=True):
            ring.record(ProcessPhase(ring.source.role, phase, BEGUN_AT, clock.now))
            ring.record(ProcessReady(ring.source.role, ring.source.pid, clock.now))
        self._rings[0].doing(Activity.SERVING)
        self._rings[1].doing(Activity.WAITING)
        return core

    def _all_rings(self) -> list[SimulatedRing]:
        return [*self._rings, *(rank.ring for rank in self._ranks)]

    def _now(self) -> int:
        return self.clock.now

    def _write(self, at: int, source: SimulatedSource, record: Record) -> None:
        self._num_written += 1
        heapq.heappush(self._pending, (at, self._num_written, source, record))

    def _take_round(self, moment: int) -> None:
        self._flush(moment)
        if self._on_round is not None:
            self._rings[0].heartbeat(moment)
            self._on_round(moment, self.headers)

    def _flush(self, moment: int) -> None:
        while self._pending and self._pending[0][0] <= moment:
            _, _, source, record = heapq.heappop(self._pending)
            self._sink(source, record)


def _reader(clock: RankClock) -> Callable[[], int]:
    return lambda: clock.now
