"""Simulation: a whole run, with the real core over synthetic ranks, in virtual time and one thread."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.synthetic.regimes import SYNTHETIC_LIMITS, Arrival, Stall, SyntheticLimits, blend
from vllm_obs.engine.synthetic.simulated_executor import SimulatedExecutor, SimulatedRank, started
from vllm_obs.engine.synthetic.simulated_front_end import ServerTurns, SimulatedFrontEnd
from vllm_obs.engine.synthetic.simulated_ring import SimulatedHeader, SimulatedRing, SimulatedSource
from vllm_obs.engine.synthetic.virtual_time import BEGUN_AT, Interval, RankClock, VirtualClock
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, Record, TelemetrySet

API_SERVER = SimulatedSource("APIServer_0", 1001, 11, "")
FIRST_ENGINE_PID = 1002
PIDS_AN_ENGINE = 100
FIRST_GENERATION = 12
MAX_REQUESTS_A_LIFE = 100_000

Sink = Callable[[int, SimulatedSource, Record], None]
"""Told the moment at which a record is written, by whom, and the record."""
OnRound = Callable[[int, dict[str, SimulatedHeader]], None]
"""Told the moment (monotonic ns) and what each process's ring header shows then, by role."""


@dataclass(frozen=True)
class SimulationOptions:
    """The engine that is simulated. `step_time` are fields of StepTimeModel that differ from its own.

    With one rank the worker lives in the core's process. A step takes up to `jitter` (a share) longer than its
    model says. Rounds, in which a watcher looks at the run, are `round_seconds` apart. It is one of `num_engines`,
    and `life` processes were in its place before.
    """

    limits: SyntheticLimits = SYNTHETIC_LIMITS
    step_time: dict[str, Any] = field(default_factory=dict)
    num_ranks: int = 2
    start_seconds: float = 2.0
    jitter: float = 0.03
    round_seconds: float = 0.25
    engine_index: int = 0
    num_engines: int = 1
    life: int = 0

    def source(self, rank: int = -1) -> SimulatedSource:
        """The process of a rank, or without one that of the core."""
        number = PIDS_AN_ENGINE * (self.engine_index + self.num_engines * self.life) + rank + 1
        label = str(self.engine_index)
        of_engine = f"_DP{label}" if self.num_engines > 1 else ""
        role = f"Worker{of_engine}_TP{rank}" if rank >= 0 else f"EngineCore_DP{label}"
        return SimulatedSource(role, FIRST_ENGINE_PID + number, FIRST_GENERATION + number, label)


DEFAULT = SimulationOptions()


def simulate(
    regimes: Sequence[str], seed: int = 0, seconds: float = 60.0, options: SimulationOptions = DEFAULT
) -> list[tuple[SimulatedSource, Record]]:
    """What a run under these regimes at once records, in order of time; arrivals end after so many seconds.

    The same for the same arguments. The run goes on until every request has ended.
    """
    facts: list[tuple[SimulatedSource, Record]] = []
    arrivals, stalls = blend(regimes, seed, seconds)
    simulation = Simulation(arrivals, stalls, options, lambda _, source, record: facts.append((source, record)))
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
    return replace(args.create_engine_config(), engine_index=options.engine_index, generation=options.life)


class Simulation:
    """The processes of a run as one program: API servers, a core, and ranks, each with its ring.

    `servers` take the requests in turns; they record of themselves only beside the first engine. Records go to
    `sink` in order of time, and never earlier than the moment the run has come to; `on_round` is told between
    them, and headers are kept for it only. A stall stops the last rank.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        stalls: Sequence[Stall] = (),
        options: SimulationOptions = DEFAULT,
        sink: Sink = lambda at, source, record: None,
        on_round: OnRound | None = None,
        servers: Sequence[SimulatedSource] = (API_SERVER,),
    ) -> None:
        self.clock = VirtualClock(int(options.round_seconds * 1e9))
        self._options = options
        self._sink = sink
        self._on_round = on_round
        self._pending: list[tuple[int, int, SimulatedSource, Record]] = []
        self._num_written = 0
        self._serving_at = BEGUN_AT + int(options.start_seconds * 1e9) + 100_000_000
        self._ring_of_core = self._ring(options.source(), self._now)
        self._servers = [self._ring(source, self._now) for source in servers]
        self._ranks = self._make_ranks(stalls)
        num_before = options.life * MAX_REQUESTS_A_LIFE
        turns = ServerTurns(servers, options.engine_index, options.num_engines, num_before)
        self._front = SimulatedFrontEnd(turns, self._serving_at, arrivals, self._write)
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
        while self._step():
            continue
        self._ring_of_core.doing(Activity.WAITING)
        self.clock.move_to(until)
        self._flush(until * 2)

    def _step(self) -> bool:
        """One turn of the core's loop; False when there is nothing left to do."""
        front, clock, ring = self._front, self.clock, self._ring_of_core
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
            source = self._options.source(number if num_ranks > 1 else -1)
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
        is_first = not self._options.engine_index and not self._options.life
        servers = self._servers if is_first else []
        for ring in (*servers, self._ring_of_core):
            ring.record(started(ring, clock.now))
        for ring in servers[:1]:
            ring.record(TelemetrySet(0, 1.0, clock.now))
        executor = SimulatedExecutor(config, clock, self._ranks, self._options.start_seconds)
        core = EngineCore(config, executor, self._ring_of_core, clock.read)
        for ring in (*servers, self._ring_of_core):
            phase = "make core" if ring is self._ring_of_core else "wait for engine"
            ring.record(ProcessPhase(ring.source.role, phase, BEGUN_AT, clock.now))
            ring.record(ProcessReady(ring.source.role, ring.source.pid, clock.now))
        for ring in self._servers:
            ring.doing(Activity.SERVING)
        self._ring_of_core.doing(Activity.WAITING)
        return core

    def _all_rings(self) -> list[SimulatedRing]:
        return [*self._servers, self._ring_of_core, *(rank.ring for rank in self._ranks)]

    def _now(self) -> int:
        return self.clock.now

    def _write(self, at: int, source: SimulatedSource, record: Record) -> None:
        self._num_written += 1
        heapq.heappush(self._pending, (at, self._num_written, source, record))

    def _take_round(self, moment: int) -> None:
        self._flush(moment)
        if self._on_round is not None:
            for ring in self._servers:
                ring.heartbeat(moment)
            self._on_round(moment, self.headers)

    def _flush(self, moment: int) -> None:
        while self._pending and self._pending[0][0] <= moment:
            at, _, source, record = heapq.heappop(self._pending)
            self._sink(at, source, record)


def _reader(clock: RankClock) -> Callable[[], int]:
    return lambda: clock.now
