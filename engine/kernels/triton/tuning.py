"""Tuning: the fastest configuration of each kernel and class of shapes on a card, found step by step."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Launch, LaunchConfig
from vllm_obs.engine.kernels.triton.tuning_candidates import neighbours
from vllm_obs.engine.kernels.triton.tuning_race import Race
from vllm_obs.engine.kernels.triton.workloads import Workload

_logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A place in the table."""

    kernel: str
    shape_class: str


@dataclass
class Tuned:
    """What came of one workload: `config` is what won, `gain` the share of the time that it saved of `before`.

    num_tried: configurations that were raced; `failed` those that the card would not run.
    """

    entry: Entry
    workload: str
    before: LaunchConfig
    config: LaunchConfig
    gain: float = 0.0
    num_tried: int = 0
    failed: list[LaunchConfig] = field(default_factory=list)
    is_cut_short: bool = False


class Tuning:
    """Works on one table: `configs` is how it stands. `run_launch` queues a launch; `deadline` is by `clock`.

    A search ends where no neighbour of the winner is faster, or at the deadline.
    """

    def __init__(
        self,
        configs: Configs,
        race: Race,
        deadline: float,
        run_launch: Callable[[Launch], object] = Launch.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.configs = configs
        self._race = race
        self._deadline = deadline
        self._run_launch = run_launch
        self._clock = clock

    def tune(self, workloads: Iterable[Workload]) -> list[Tuned]:
        """All of them, each entry of the table once: by the first workload that uses it."""
        found: dict[Entry, Tuned] = {}
        for workload in workloads:
            entry = entry_of(workload, self.configs)
            if entry not in found:
                found[entry] = self._tune_one(workload, entry)
                self.configs = with_entry(self.configs, entry, found[entry].config)
        return list(found.values())

    def _tune_one(self, workload: Workload, entry: Entry) -> Tuned:
        start = self.configs.of(*entry)
        tuned = Tuned(entry, workload.name, start, start)
        seen = {_key(start)}
        is_better = self._clock() < self._deadline and self._runs(workload, tuned, start)
        while is_better:
            is_better = self._step(workload, tuned, seen)
        tuned.is_cut_short = self._clock() >= self._deadline
        return tuned

    def _step(self, workload: Workload, tuned: Tuned, seen: set[object]) -> bool:
        """Race the neighbours of what leads; whether one of them took the lead."""
        for candidate in neighbours(tuned.config):
            if self._clock() >= self._deadline:
                return False
            if _key(candidate) in seen:
                continue
            seen.add(_key(candidate))
            if self._runs(workload, tuned, candidate) and self._wins(workload, tuned, candidate):
                return True
        return False

    def _wins(self, workload: Workload, tuned: Tuned, candidate: LaunchConfig) -> bool:
        tuned.num_tried += 1
        verdict = self._race.run(
            self._runner(workload, tuned.entry, tuned.config), self._runner(workload, tuned.entry, candidate)
        )
        if verdict.is_faster:
            tuned.gain = 1.0 - (1.0 - tuned.gain) * verdict.ratio
            tuned.config = candidate
        return verdict.is_faster

    def _runs(self, workload: Workload, tuned: Tuned, config: LaunchConfig) -> bool:
        """Whether the card runs it at all: it may take too much shared memory, or too many registers."""
        try:
            self._runner(workload, tuned.entry, config)()
        except Exception as error:  # whatever the compiler or the driver has to say of it
            _logger.info("%s: %s does not run: %s", workload.name, config, str(error).partition("\n")[0])
            tuned.failed.append(config)
            return False
        return True

    def _runner(self, workload: Workload, entry: Entry, config: LaunchConfig) -> Callable[[], object]:
        launch = workload.launch(with_entry(self.configs, entry, config))
        return lambda: self._run_launch(launch)


@dataclass(frozen=True)
class _Asked(Configs):
    """A table that notes what it is asked for."""

    entries: list[Entry] = field(default_factory=list)

    def of(self, kernel: str, shape_class: str = "any") -> LaunchConfig:
        """The table's."""
        self.entries.append(Entry(kernel, shape_class if shape_class in self.table[kernel] else "any"))
        return super().of(kernel, shape_class)


def entry_of(workload: Workload, configs: Configs) -> Entry:
    """The entry of the table that a workload is launched by."""
    asked = _Asked(configs.table)
    workload.launch(asked)
    (entry,) = asked.entries
    return entry


def with_entry(configs: Configs, entry: Entry, config: LaunchConfig) -> Configs:
    """The table with another configuration there."""
    classes = {**configs.table[entry.kernel], entry.shape_class: config}
    return Configs({**configs.table, entry.kernel: classes})


def _key(config: LaunchConfig) -> object:
    return (*sorted(config.sizes.items()), config.num_warps, config.num_stages)
