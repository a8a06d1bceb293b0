"""The table of a capture by samples: for each role its threads, and the functions that most samples found."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_obs.telemetry.sample_set import SampleSet, StackRun, role_family

TOP_FUNCTIONS = 25
TOP_THREADS = 50

Function = tuple[str, str]
"""A function and its file."""

_MEASURES = ("self_samples", "total_samples", "self_ran", "total_ran", "self_cpu_seconds", "total_cpu_seconds")


def sample_table(sets: Sequence[SampleSet], num_functions: int = TOP_FUNCTIONS) -> list[dict[str, Any]]:
    """A row for each role, by its name; its ranks are summed.

    A function's `self_…` are of the samples that found it innermost, `total_…` of all that found it in the stack.
    `…_ran` counts the samples of a thread that had just used the CPU (0 where `knows_who_ran` is false), and
    `…_cpu_seconds` what the threads had used of it when they were found there; these order the functions.
    """
    roles: dict[str, _Role] = {}
    for samples in sets:
        roles.setdefault(role_family(samples.role), _Role()).add(samples)
    return [role.shown(name, num_functions) for name, role in sorted(roles.items())]


@dataclass
class _Role:
    """The sums over all processes of one role."""

    processes: list[dict[str, Any]] = field(default_factory=list)
    functions: dict[Function, list[float]] = field(default_factory=dict)
    threads: dict[str, list[float]] = field(default_factory=dict)
    knows_who_ran: bool = True

    def add(self, samples: SampleSet) -> None:
        self.processes.append(_process(samples))
        stacks = [[samples.frames[index][:2] for index in stack] for stack in samples.stacks]
        for thread in samples.threads:
            sums = self.threads.setdefault(thread.name, [0, 0, 0.0])
            for run in thread.runs:
                ran = self._ran(run)
                for place, value in enumerate((run.num_samples, ran, run.cpu_seconds)):
                    sums[place] += value
                self._count(stacks[run.stack], (run.num_samples, ran, run.cpu_seconds))

    def _ran(self, run: StackRun) -> int:
        if run.num_ran < 0:
            self.knows_who_ran = False
        return max(0, run.num_ran)

    def _count(self, stack: list[Function], values: tuple[int, int, float]) -> None:
        """A function that calls itself counts once for a stack."""
        for function in set(stack):
            sums = self.functions.setdefault(function, [0, 0, 0, 0, 0.0, 0.0])
            for place, value in enumerate(values):
                sums[2 * place] += value if function == stack[-1] else 0
                sums[2 * place + 1] += value

    def shown(self, name: str, num_functions: int) -> dict[str, Any]:
        ranked = sorted(self.functions.items(), key=_rank, reverse=True)
        threads = sorted(self.threads.items(), key=lambda entry: (-entry[1][2], -entry[1][0], entry[0]))
        return {
            "role": name,
            "processes": self.processes,
            "num_samples": int(sum(sums[0] for sums in self.threads.values())),
            "num_ran": int(sum(sums[1] for sums in self.threads.values())),
            "cpu_seconds": sum(sums[2] for sums in self.threads.values()),
            "knows_who_ran": self.knows_who_ran,
            "num_functions": len(ranked),
            "functions": [
                {"function": function, "file": file} | dict(zip(_MEASURES, sums, strict=True))
                for (function, file), sums in ranked[:num_functions]
            ],
            "num_threads": len(threads),
            "threads": [
                {"thread": thread, "num_samples": num, "num_ran": ran, "cpu_seconds": cpu}
                for thread, (num, ran, cpu) in threads[:TOP_THREADS]
            ],
        }


def _rank(entry: tuple[Function, list[float]]) -> tuple[float, ...]:
    """By the CPU time used in it, where none is known by its samples."""
    self_samples, total_samples, _, _, self_cpu_seconds, total_cpu_seconds = entry[1]
    return self_cpu_seconds, total_cpu_seconds, self_samples, total_samples


def _process(samples: SampleSet) -> dict[str, Any]:
    cost = samples.cost
    return {
        "role": samples.role,
        "pid": samples.pid,
        "sampler": samples.sampler,
        "rate_hz": samples.rate_hz,
        "begun_at": samples.begun_at,
        "ended_at": samples.ended_at,
        "num_samples": samples.num_samples,
        "num_unplaced": samples.num_unplaced,
        "is_in_order": samples.is_in_order,
        "num_looks": cost.num_looks,
        "num_missed": cost.num_missed,
        "cost_cpu_seconds": cost.cpu_seconds,
        "cost_seconds_per_look": cost.seconds_per_look,
        "cost_share": cost.share,
    }
