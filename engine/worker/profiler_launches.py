"""What our kernels had to move and compute in a step, given to what a device says that it ran."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, runtime_checkable

from vllm_obs.engine.kernels.triton.launch_work import LaunchWork, StepRows
from vllm_obs.engine.plan import StepPlan
from vllm_obs.engine.worker.profiler_torch import TorchEvent


@runtime_checkable
class LaunchingModel(Protocol):
    """A model whose kernels are ours, and the sampler's with it."""

    def watch_launches(self, watch: Callable[[LaunchWork], None] | None) -> None:
        """Tell of every launch on this thread from now on, in order; None ends it."""


def rows_of(plan: StepPlan) -> StepRows:
    """The rows of a plan."""
    computed = [*(row.num_computed_tokens for row in plan.new_rows), *plan.running_num_computed_tokens]
    lengths = plan.num_scheduled_tokens
    return StepRows(lengths, [before + new for before, new in zip(computed, lengths, strict=True)])


def with_work(events: Sequence[TorchEvent], works: Sequence[LaunchWork], rows: StepRows) -> list[TorchEvent]:
    """The events; those of our kernels, in order of their begin, have the operations and bytes of their launches.

    A kernel that did not run as often as it was launched is left as it is: which launch was which is not known.
    """
    launched: dict[str, list[LaunchWork]] = defaultdict(list)
    for work in works:
        launched[work.kernel].append(work)
    ran: dict[str, list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.track and event.name in launched:
            ran[event.name].append(place)

    @cache  # layers are alike
    def measured(work: LaunchWork) -> tuple[int, int]:
        return work.flops_of(rows), work.bytes_of(rows)

    found = list(events)
    for name, places in ran.items():
        if len(places) == len(launched[name]):
            places.sort(key=lambda place: events[place].begun_at)
            for place, work in zip(places, launched[name], strict=True):
                flops, num_bytes = measured(work)
                found[place] = events[place]._replace(flops=flops, num_bytes=num_bytes)
    return found
