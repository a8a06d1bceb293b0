"""The speedscope file of one capture, in the format of https://www.speedscope.app/file-format-schema.json."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_obs.telemetry.sample_set import Frame, SampleSet, ThreadSamples, role_family

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MAX_PROFILES = 512
MAX_INDICES = 4_000_000
"""Of all threads' stacks together: some 30 MB of text. A thread for which no room is left is summed by stack."""

Profile = dict[str, Any]


def speedscope_file(name: str, sets: Sequence[SampleSet], exporter: str = "vllm-obs") -> dict[str, Any]:
    """One profile of each role with all its processes' threads, then one of each thread of each process.

    All are `sampled`, weighted with seconds of wall time, and share one table of frames. A thread's samples are in
    the order of time; a role's are summed by stack, with the thread's name as outermost frame.
    """
    frames = FrameTable()
    profiles = [*_role_profiles(sets, frames), *_thread_profiles(sets, frames)]
    return {
        "$schema": SCHEMA,
        "name": name,
        "exporter": exporter,
        "activeProfileIndex": 0,
        "shared": {"frames": frames.shown()},
        "profiles": profiles[:MAX_PROFILES],
    }


class FrameTable:
    """The frames of all profiles, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}

    def number(self, frame: Frame) -> int:
        """The index of a frame, which is put in if it is new."""
        return self._numbers.setdefault(frame, len(self._numbers))

    def stacks(self, samples: SampleSet) -> list[list[int]]:
        """The stacks of a process in this table's numbers."""
        numbers = [self.number(frame) for frame in samples.frames]
        return [[numbers[index] for index in stack] for stack in samples.stacks]

    def shown(self) -> list[dict[str, Any]]:
        """The table as the format has it; what is no place in a file has neither file nor line."""
        return [
            {"name": frame.function, "file": frame.file, "line": frame.line}
            if frame.file
            else {"name": frame.function}
            for frame in self._numbers
        ]


def _role_profiles(sets: Sequence[SampleSet], frames: FrameTable) -> Iterable[Profile]:
    weights: dict[str, dict[tuple[int, ...], float]] = {}
    for samples in sets:
        stacks = frames.stacks(samples)
        of_role = weights.setdefault(role_family(samples.role), {})
        for thread in samples.threads:
            root = frames.number(Frame(thread.name, "", 0))
            for run in thread.runs:
                stack = (root, *stacks[run.stack])
                of_role[stack] = of_role.get(stack, 0.0) + run.seconds
    for role, by_stack in sorted(weights.items()):
        yield _profile(role, [list(stack) for stack in by_stack], list(by_stack.values()))


def _thread_profiles(sets: Sequence[SampleSet], frames: FrameTable) -> Iterable[Profile]:
    room = MAX_INDICES
    for samples in sets:
        stacks = frames.stacks(samples)
        for thread in sorted(samples.threads, key=_is_not_main):
            name = f"{samples.role} (pid {samples.pid}) · {thread.name}"
            room -= sum(len(stacks[run.stack]) for run in thread.runs)
            runs = [(run.stack, run.seconds) for run in thread.runs] if room > 0 else _summed(thread)
            yield _profile(name, [stacks[stack] for stack, _ in runs], [seconds for _, seconds in runs])


def _summed(thread: ThreadSamples) -> list[tuple[int, float]]:
    seconds: dict[int, float] = {}
    for run in thread.runs:
        seconds[run.stack] = seconds.get(run.stack, 0.0) + run.seconds
    return list(seconds.items())


def _is_not_main(thread: ThreadSamples) -> tuple[bool, str]:
    return thread.name != "MainThread", thread.name


def _profile(name: str, stacks: list[list[int]], weights: list[float]) -> Profile:
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": stacks,
        "weights": weights,
    }
