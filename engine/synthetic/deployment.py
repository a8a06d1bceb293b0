"""Deployment: a simulated run of several engines behind several API servers, merged in order of time."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from vllm_obs.engine.synthetic.regimes import Arrival, blend
from vllm_obs.engine.synthetic.simulated_ring import SimulatedSource
from vllm_obs.engine.synthetic.simulation import API_SERVER, DEFAULT, Simulation, SimulationOptions
from vllm_obs.engine.synthetic.virtual_time import BEGUN_AT, WALL_OFFSET_NS
from vllm_obs.telemetry.records import LoopSampled, ProcessReady, ProcessStarted, Record

LAUNCHER = SimulatedSource("Launcher", 1000, 10, "")
FIRST_SERVER_PID = 9001

Fact = tuple[SimulatedSource, Record]
DatedFact = tuple[int, int, int, SimulatedSource, Record]
"""When it was written (monotonic ns), the engine it is from or went to, and its place there."""


def simulate_deployment(
    regimes: Sequence[str],
    num_api_servers: int,
    seed: int = 0,
    seconds: float = 60.0,
    options: SimulationOptions = DEFAULT,
) -> list[Fact]:
    """What `options.num_engines` engines record under these regimes at once, as `simulate` does for one.

    Requests go to the engines and API servers in turns. The last engine has the stalls. With several API servers a
    launcher is above them.
    """
    arrivals, stalls = blend(regimes, seed, seconds)
    servers, num_engines = api_servers(num_api_servers), options.num_engines
    runs: list[list[DatedFact]] = []
    for index in range(num_engines):
        own: Sequence[Arrival] = arrivals[index::num_engines]
        facts: list[DatedFact] = []
        simulation = Simulation(
            own,
            stalls if index == num_engines - 1 else (),
            replace(options, engine_index=index),
            _into(facts, index),
            servers=servers,
        )
        simulation.run(seconds)
        runs.append(facts)
    return list(_with_launcher(servers, _with_whole_samples(list(heapq.merge(*runs)))))


def api_servers(num: int) -> list[SimulatedSource]:
    """So many; the first is that of a run with one."""
    pids = range(FIRST_SERVER_PID, FIRST_SERVER_PID + num - 1)
    return [API_SERVER, *(SimulatedSource(f"APIServer_{n}", pid, pid, "") for n, pid in enumerate(pids, 1))]


def _into(facts: list[DatedFact], engine_index: int) -> Callable[[int, SimulatedSource, Record], None]:
    def keep(at: int, source: SimulatedSource, record: Record) -> None:
        facts.append((at, engine_index, len(facts), source, record))

    return keep


def _with_whole_samples(facts: Sequence[DatedFact]) -> Iterator[Fact]:
    """What an API server samples is of all engines together: each run has simulated a part of it."""
    num_open: Counter[tuple[int, int]] = Counter()
    for *_, record in facts:
        if isinstance(record, LoopSampled):
            num_open[record.client_index, record.sampled_at] += record.num_open_http
    for *_, source, record in facts:
        if isinstance(record, LoopSampled):
            num = num_open.pop((record.client_index, record.sampled_at), None)
            if num is None:
                continue
            record = record._replace(num_open_http=num, num_open_sequences=num)
        yield source, record


def _with_launcher(servers: Sequence[SimulatedSource], facts: Iterable[Fact]) -> Iterator[Fact]:
    """It starts before all others, and is ready when all API servers are."""
    role, pid, *_ = LAUNCHER
    waited_for = {server.role for server in servers} if len(servers) > 1 else set()
    if waited_for:
        yield LAUNCHER, ProcessStarted(role, pid, BEGUN_AT, WALL_OFFSET_NS + BEGUN_AT)
    for source, record in facts:
        yield source, record
        if isinstance(record, ProcessReady) and record.role in waited_for:
            waited_for.remove(record.role)
            if not waited_for:
                yield LAUNCHER, ProcessReady(role, pid, record.ready_at)
