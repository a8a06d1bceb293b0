"""SamplerChoice: whether the processes of a run are sampled by py-spy or by themselves, and why."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.sample_pyspy import Target, why_not
from vllm_obs.telemetry.sample_set import IN_PROCESS, PY_SPY
from vllm_obs.telemetry.stacks import live_processes, py_spy

AUTO = "auto"
SAMPLERS = (AUTO, PY_SPY, IN_PROCESS)


class NoSamplerError(Exception):
    """The sampler that was asked for cannot be used here; the words say why."""


class SamplerChoice(NamedTuple):
    """`program` is py-spy's path where it is to sample `targets`, empty where each process samples itself."""

    sampler: str
    program: str
    targets: list[Target]
    says: str


def choose_sampler(
    wanted: str,
    targets: Sequence[Target],
    program: str | None = None,
    may_not: Callable[[int], str] = why_not,
) -> SamplerChoice:
    """With `auto` py-spy, if it is installed and may look at each of the processes: it sees one that hangs, too.

    One sampler for all, so that their samples mean the same. NoSamplerError where py-spy was asked for in vain.
    """
    if wanted == IN_PROCESS:
        return SamplerChoice(IN_PROCESS, "", list(targets), "each process samples itself, as was asked for")
    reason = _why_no_py_spy(program, targets, may_not)
    if not reason:
        return SamplerChoice(PY_SPY, program or "", list(targets), "py-spy looks at each process from outside")
    if wanted == PY_SPY:
        raise NoSamplerError(f"py-spy cannot be used: {reason}")
    return SamplerChoice(IN_PROCESS, "", list(targets), f"each process samples itself: {reason}")


def targets_of(run_dir: Path) -> list[Target]:
    """The processes of the run that live now: those that hold their rings open, so that no pid is another's."""
    return [Target(*found) for found in live_processes(run_dir)]


def find_program() -> str | None:
    """Where py-spy is, None if it is not installed."""
    return py_spy()


def _why_no_py_spy(program: str | None, targets: Sequence[Target], may_not: Callable[[int], str]) -> str:
    if program is None:
        return "py-spy is not installed"
    for target in targets:
        if reason := may_not(target.pid):
            return f"py-spy may not look at {target.role}: {reason}"
    return ""
