"""TuningSession: all kernels tuned on one card, and the file and the words that come of it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
import triton

from vllm_obs.engine.kernels.triton.configs import (
    FOLDER,
    Configs,
    card_file,
    configs_of_card,
    read_configs,
    table_text,
)
from vllm_obs.engine.kernels.triton.device_timer import DeviceTimer, Timer
from vllm_obs.engine.kernels.triton.launch import Launch
from vllm_obs.engine.kernels.triton.model_shape import ModelShape
from vllm_obs.engine.kernels.triton.sampling_workloads import sampling_workloads
from vllm_obs.engine.kernels.triton.tuning import Tuned, Tuning
from vllm_obs.engine.kernels.triton.tuning_race import Race
from vllm_obs.engine.kernels.triton.workloads import Bench, Workload, WorkSize, layer_workloads

Say = Callable[[str], object]


class GpuCard(NamedTuple):
    """The card that is tuned; `run_launch` queues a launch on it."""

    name: str
    capability: int
    device: torch.device
    timer: Timer
    run_launch: Callable[[Launch], object] = Launch.run

    @classmethod
    def current(cls) -> "GpuCard":
        """The current CUDA device."""
        device = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.name, 10 * properties.major + properties.minor, device, DeviceTimer())


class TuningOrder(NamedTuple):
    """For which sizes, and how long at most."""

    shape: ModelShape
    size: WorkSize
    seconds: float


@dataclass
class TunedCard:
    """What came of it."""

    card: GpuCard
    order: TuningOrder
    entries: list[Tuned]

    def table(self) -> Configs:
        """Those entries that were raced, by kernel and class."""
        table: Configs = Configs({})
        for tuned in self.entries:
            if tuned.num_tried:
                table.table.setdefault(tuned.entry.kernel, {})[tuned.entry.shape_class] = tuned.config
        return table

    def write(self, path: Path | None = None) -> Path:
        """Write the card's file, by default where a server looks for it; entries of before stay. OSError."""
        path = path or FOLDER / card_file(self.card.name)
        part = path.with_name(path.name + ".part")
        part.write_text(table_text(self._over_what_is_there(path), self._about()))
        part.replace(path)
        return path

    def lines(self) -> Iterator[str]:
        """A line an entry, for people."""
        for tuned in self.entries:
            where = f"{tuned.entry.kernel} {tuned.entry.shape_class}"
            found = f"{_words(tuned)}, {100 * tuned.gain:.0f} % faster" if tuned.gain else "stays as it was"
            cut = ", cut short" if tuned.is_cut_short else ""
            failed = f", {len(tuned.failed)} did not run" if tuned.failed else ""
            yield f"{where:<32} {found} ({tuned.num_tried} tried{failed}{cut})"

    def hints(self, output: Path | None) -> Iterator[str]:
        """What to do now."""
        if output is not None:
            yield f"A server takes it as {FOLDER / card_file(self.card.name)}."
        yield "`make bench-gpu` checks all kernels with it."

    def _over_what_is_there(self, path: Path) -> Configs:
        """A second session for other sizes keeps what the first one found."""
        found = self.table()
        if path != FOLDER / card_file(self.card.name) or not path.is_file():
            return found
        before = read_configs(path)
        kernels = [*before.table, *(name for name in found.table if name not in before.table)]
        return Configs({name: {**before.table.get(name, {}), **found.table.get(name, {})} for name in kernels})

    def _about(self) -> dict[str, str]:
        size = self.order.size
        return {
            "card": self.card.name,
            "sizes": f"{self.order.shape.name}, {size.num_rows} rows of {size.seq_len} tokens",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def tune_card(
    card: GpuCard, order: TuningOrder, say: Say, clock: Callable[[], float] = time.monotonic
) -> TunedCard:
    """Tune every kernel, in bfloat16."""
    configs, reason = configs_of_card(card.name, card.capability)
    say(f"{card.name}: begins with {reason}.")
    bench = Bench(order.shape, order.size, card.device)
    tuning = Tuning(configs, Race(card.timer), clock() + order.seconds, card.run_launch, clock)
    workloads = chain(layer_workloads(bench), sampling_workloads(bench))
    return TunedCard(card, order, tuning.tune(_told(workloads, say)))


def _told(workloads: Iterator[Workload], say: Say) -> Iterator[Workload]:
    for workload in workloads:
        say(f"  {workload.name}")
        yield workload


def _words(tuned: Tuned) -> str:
    config = tuned.config
    sizes = "×".join(map(str, config.sizes.values()))
    return f"{sizes + ', ' if sizes else ''}{config.num_warps} warps, {config.num_stages} stages"
