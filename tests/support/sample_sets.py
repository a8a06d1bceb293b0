"""Small sets of samples, and threads that wait or work where a test can find them."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from vllm_obs.telemetry.sample_set import IN_PROCESS, Frame, SampleCost, SampleSet, StackRun, ThreadSamples

MAIN = Frame("main", "vllm_obs/engine/process.py", 10)
STEP = Frame("EngineCore.step", "vllm_obs/engine/core.py", 100)
STEP_LATER = Frame("EngineCore.step", "vllm_obs/engine/core.py", 101)
WAIT = Frame("Queue.get", "queue.py", 171)


def engine_samples(role: str = "EngineCore_DP0", pid: int = 7) -> SampleSet:
    """A main thread that was in a step, in itself and waiting, and a thread that only waited."""
    return SampleSet(
        profile="p1",
        role=role,
        pid=pid,
        sampler=IN_PROCESS,
        rate_hz=100.0,
        begun_at=1_000_000_000,
        ended_at=1_050_000_000,
        frames=[MAIN, STEP, WAIT, STEP_LATER],
        stacks=[[0, 1], [0, 2], [0, 1, 3]],
        threads=[
            ThreadSamples(
                "engine input", 12, [StackRun(stack=1, num_samples=5, seconds=0.05, cpu_seconds=0.0, num_ran=0)]
            ),
            ThreadSamples(
                "MainThread",
                11,
                [
                    StackRun(stack=0, num_samples=2, seconds=0.02, cpu_seconds=0.015, num_ran=2),
                    StackRun(stack=1, num_samples=1, seconds=0.01, cpu_seconds=0.0, num_ran=0),
                    StackRun(stack=2, num_samples=2, seconds=0.02, cpu_seconds=0.02, num_ran=2),
                ],
            ),
        ],
        cost=SampleCost(num_looks=5, num_missed=0, cpu_seconds=0.0005, wall_seconds=0.05),
    )


@contextlib.contextmanager
def waiting_thread(name: str, body: Callable[[threading.Event], None] | None = None) -> Iterator[threading.Thread]:
    """A thread that runs `body(ending)`, or waits, until the end of the block."""
    ending, started = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        (body or wait_for_the_end)(ending)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    started.wait(10)
    try:
        yield thread
    finally:
        ending.set()
        thread.join(10)


def wait_for_the_end(ending: threading.Event) -> None:
    """Where a waiting thread is found."""
    ending.wait(30)


def work_until_the_end(ending: threading.Event) -> None:
    """Where a working thread is found."""
    while not ending.is_set():
        sum(range(1000))
