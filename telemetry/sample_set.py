"""SampleSet: the stacks sampled of one process, thread by thread, with what the sampling itself took."""

from typing import NamedTuple

IN_PROCESS = "in-process"
PY_SPY = "py-spy"

UNKNOWN = -1
"""`num_ran` where the sampler cannot tell who ran."""


class Frame(NamedTuple):
    """A place in the code: `file` is relative to its package's parent folder, never a path of this host."""

    function: str
    file: str
    line: int


class StackRun(NamedTuple):
    """Samples in a row of one thread that found the same stack (an index into `SampleSet.stacks`).

    `seconds` is the time they stand for, `cpu_seconds` what the thread used of a CPU in it (0 where that is not
    known), `num_ran` how many of them found that it had run since the one before, UNKNOWN if that is not known.
    """

    stack: int
    num_samples: int
    seconds: float
    cpu_seconds: float
    num_ran: int


class ThreadSamples(NamedTuple):
    """One thread.

    `runs` are in the order of time unless the set says otherwise. `tid` is the kernel's, 0 if unknown.
    """

    name: str
    tid: int
    runs: list[StackRun]


class SampleCost(NamedTuple):
    """What sampling took: how often it looked, how many looks came too late to be taken, and the CPU it used."""

    num_looks: int = 0
    num_missed: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    @property
    def seconds_per_look(self) -> float:
        """CPU time of looking at all threads once."""
        return self.cpu_seconds / self.num_looks if self.num_looks else 0.0

    @property
    def share(self) -> float:
        """The part of one CPU that went into it, 0 … 1."""
        return self.cpu_seconds / self.wall_seconds if self.wall_seconds else 0.0


class SampleSet(NamedTuple):
    """One process. A stack is a list of indices into `frames`, the outermost call first.

    `num_unplaced` samples had a stack for which there was no room; they are under the stack `(other)`.
    """

    profile: str
    role: str
    pid: int
    sampler: str
    rate_hz: float
    begun_at: int
    ended_at: int
    frames: list[Frame]
    stacks: list[list[int]]
    threads: list[ThreadSamples]
    is_in_order: bool = True
    num_unplaced: int = 0
    cost: SampleCost = SampleCost()

    @property
    def num_samples(self) -> int:
        """All threads' samples."""
        return sum(run.num_samples for thread in self.threads for run in thread.runs)


def role_family(role: str) -> str:
    """What the ranks of a role have in common: Worker_DP0_TP1_PP0 is a Worker, APIServer_0 an APIServer."""
    name, _, number = role.rpartition("_")
    is_numbered = bool(name) and number.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ").isdecimal()
    return role_family(name) if is_numbered else role
