"""RunBook: the samples taken so far, in runs of equal stacks, with a bound on every part."""

from vllm_obs.telemetry.sample_set import UNKNOWN, StackRun, ThreadSamples
from vllm_obs.telemetry.sample_threads import MAX_THREADS, OTHER_THREADS

MAX_STACKS = 4096
MAX_RUNS = 50_000
"""Of all threads together. Over it a run that has that stack already grows, and the order of time is lost."""
OTHER = 0
"""The stack of the samples whose own finds no room."""

StackKey = tuple[int, ...]


class ThreadRuns:
    """One thread's samples; the last run grows in place while the stack stays the same."""

    def __init__(self, name: str, tid: int) -> None:
        self.name = name
        self.tid = tid
        self.cpu_ns = 0
        """The thread's clock when it was read last, 0 before."""
        self.runs: list[list[int]] = []
        """[stack, samples, ns, CPU ns, samples that ran] each."""
        self.last: list[int] | None = None
        """The run that the sample before was added to, which over the bound need not be the newest."""
        self._by_stack: dict[int, list[int]] | None = None

    def wait_on(self, elapsed_ns: int) -> None:
        """One more sample like the last one, of a thread that did nothing meanwhile."""
        assert self.last is not None, "it had a sample before"
        self.last[1] += 1
        self.last[2] += elapsed_ns

    def used_until(self, cpu_ns: int) -> int:
        """What its clock has gone on by since it was read last, now that it is at `cpu_ns`."""
        used_ns = cpu_ns - self.cpu_ns if self.cpu_ns else 0
        self.cpu_ns = cpu_ns
        return max(0, used_ns)

    def finished(self) -> list[StackRun]:
        """The runs as they are written down; who ran is known of threads that Python started."""
        return [
            StackRun(stack, num_samples, ns / 1e9, cpu_ns / 1e9, num_ran if self.tid else UNKNOWN)
            for stack, num_samples, ns, cpu_ns, num_ran in self.runs
        ]

    def merge(self, stack: int) -> list[int]:
        """The run to add to where no new one may begin: one with this stack, else the one for all others."""
        if self._by_stack is None:
            self._by_stack = {run[0]: run for run in self.runs}
        run = self._by_stack.get(stack) or self._by_stack.get(OTHER)
        if run is None:
            # At most one for each thread.
            run = self._by_stack[OTHER] = [OTHER, 0, 0, 0, 0]
            self.runs.append(run)
        return run


class RunBook:
    """Grows up to its bounds and no further, however long and however varied the sampling is."""

    def __init__(self, max_stacks: int = MAX_STACKS, max_runs: int = MAX_RUNS) -> None:
        self.stacks: dict[StackKey, int] = {(): OTHER}
        self.threads: dict[tuple[str, int], ThreadRuns] = {}
        self.num_unplaced = 0
        self.is_in_order = True
        self._max_stacks = max_stacks
        self._max_runs = max_runs
        self._num_runs = 0

    def thread(self, name: str, tid: int) -> ThreadRuns:
        """The runs of a thread; of the 129th and all after it those they share."""
        key = (name, tid) if (name, tid) in self.threads or len(self.threads) < MAX_THREADS else (OTHER_THREADS, 0)
        found = self.threads.get(key)
        if found is None:
            found = self.threads[key] = ThreadRuns(*key)
        return found

    def place(self, key: StackKey) -> tuple[int, bool]:
        """The number of a stack, and whether it is a new one."""
        stack = self.stacks.get(key)
        if stack is not None:
            return stack, False
        if len(self.stacks) >= self._max_stacks:
            self.num_unplaced += 1
            return OTHER, False
        stack = self.stacks[key] = len(self.stacks)
        return stack, True

    def add(self, thread: ThreadRuns, stack: int, times: tuple[int, int], ran: bool) -> None:
        """One sample; `times` are the ns it stands for and those the thread used of a CPU."""
        run = thread.last = self._run(thread, stack)
        run[1] += 1
        run[2] += times[0]
        run[3] += times[1]
        run[4] += ran

    def _run(self, thread: ThreadRuns, stack: int) -> list[int]:
        runs = thread.runs
        if runs and runs[-1][0] == stack:
            return runs[-1]
        if self._num_runs >= self._max_runs:
            self.is_in_order = False
            return thread.merge(stack)
        self._num_runs += 1
        run = [stack, 0, 0, 0, 0]
        runs.append(run)
        return run

    def samples(self) -> list[ThreadSamples]:
        """What was taken, as it is written down; a thread that was only known by sight has none."""
        return [
            ThreadSamples(thread.name, thread.tid, thread.finished())
            for thread in self.threads.values()
            if thread.runs
        ]
