"""MetricsPorts: where the metrics look up what is not in the facts they are told."""

from dataclasses import dataclass, field

from vllm_obs.telemetry.engine_levels import EngineFinder
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.memory_room import MemoryRoomReader
from vllm_obs.telemetry.outside_counts import OutsidePorts
from vllm_obs.telemetry.process_reader import ProcessReader


def no_engine(_label: str) -> EngineState | None:
    """Nobody knows of any engine: all levels are 0."""
    return None


@dataclass(frozen=True)
class MetricsPorts:
    """Where engines' levels, other parts' totals and the kernel's numbers come from."""

    find_engine: EngineFinder = no_engine
    outside: OutsidePorts = field(default_factory=OutsidePorts)
    processes: ProcessReader = field(default_factory=ProcessReader)
    memory: MemoryRoomReader = field(default_factory=MemoryRoomReader)
