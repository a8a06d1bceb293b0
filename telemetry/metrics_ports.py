"""MetricsPorts: where the metrics look up what is not in the facts they are told."""

from dataclasses import dataclass, field

from vllm_obs.telemetry.engine_levels import BlockCounter, BlockLevels
from vllm_obs.telemetry.outside_counts import OutsidePorts
from vllm_obs.telemetry.process_reader import ProcessReader
from vllm_obs.telemetry.run_state import RunState


def no_block_counter(_engine: str) -> BlockLevels | None:
    """Nobody counts blocks: levels are those of the last plan."""
    return None


def block_counter_of(state: RunState) -> BlockCounter:
    """The levels of the run's block maps, as long as these are exact."""

    def count(engine: str) -> BlockLevels | None:
        found = state.engines.get(engine)
        return found.blocks.levels if found is not None and found.blocks.is_exact else None

    return count


@dataclass(frozen=True)
class MetricsPorts:
    """Where block levels, other parts' totals and the kernel's numbers come from."""

    block_counter: BlockCounter = no_block_counter
    outside: OutsidePorts = field(default_factory=OutsidePorts)
    processes: ProcessReader = field(default_factory=ProcessReader)
