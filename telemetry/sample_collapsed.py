"""Collapsed stacks: a line for each stack, its frames apart by `;`, outermost first, with its count of samples."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from vllm_obs.telemetry.sample_set import Frame, SampleSet, StackRun, role_family


def collapsed_text(sets: Sequence[SampleSet], by_role: bool = True) -> str:
    """`role;thread;function (file:line);… count`, in order of the text; processes of one role are summed.

    With `by_role` false the ranks of a role stay apart.
    """
    counts: Counter[str] = Counter()
    for samples in sets:
        for stack, run in _runs(samples, role_family(samples.role) if by_role else samples.role):
            counts[stack] += run.num_samples
    return "".join(f"{stack} {num}\n" for stack, num in sorted(counts.items()))


def ran_text(sets: Sequence[SampleSet]) -> str:
    """The same with microseconds of CPU time in place of samples; what used none is left out."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for samples in sets:
        for stack, run in _runs(samples, role_family(samples.role)):
            seconds[stack] += run.cpu_seconds
    counts = {stack: round(1e6 * number) for stack, number in seconds.items()}
    return "".join(f"{stack} {num}\n" for stack, num in sorted(counts.items()) if num)


def read_collapsed(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    """The stacks of such a text with their counts. ValueError for a line that is none."""
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        if line.strip():
            stack, _, num = line.rstrip("\n").rpartition(" ")
            counts[tuple(stack.split(";"))] += int(num)
    return counts


def _runs(samples: SampleSet, role: str) -> Iterator[tuple[str, StackRun]]:
    names = [_frame(frame) for frame in samples.frames]
    stacks = [";".join(names[index] for index in stack) for stack in samples.stacks]
    for thread in samples.threads:
        head = f"{_plain(role)};{_plain(thread.name)}"
        for run in thread.runs:
            yield f"{head};{stacks[run.stack]}", run


def _frame(frame: Frame) -> str:
    if not frame.file:
        return _plain(frame.function)
    return _plain(f"{frame.function} ({frame.file}:{frame.line})")


def _plain(name: str) -> str:
    """A name that breaks neither the line nor the list."""
    return " ".join(name.replace(";", ":").split()) or "?"
