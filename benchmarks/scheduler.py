"""Measures the scheduler by itself: schedule and update of a step in which every running sequence gets a token.

    .venv/bin/python benchmarks/scheduler.py [--running 1 64 256 1024] [--waiting 0 10000] [--ahead]

No model and no executor: answers are made up. Prompts are of some hundred tokens and computed when it begins; who
waits does so because no more may run. With --ahead a step is planned before the last one has answered. The goals
are 200 µs for 256 running, 1 ms for 1,024, and no more than that with 10,000 waiting. Microseconds; the collector
of garbage runs as it would in an engine.
"""

import argparse
import random
import statistics
import time
from typing import NamedTuple

import numpy as np

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.messages import EngineCoreRequest, SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan
from vllm_obs.engine.scheduler import Scheduler

PROMPT_TOKENS = 200
NUM_BLOCKS = 1 << 17
MAX_TOKENS = 1000
PREFILL_STEPS = 400


class Took(NamedTuple):
    """What steps took, in ns."""

    schedule: list[int]
    update: list[int]

    def both(self) -> list[int]:
        """By step."""
        return [sum(step) for step in zip(self.schedule, self.update, strict=True)]


def make_scheduler(num_running: int, is_ahead: bool) -> Scheduler:
    """One that lets so many run, with room in the cache for all of them."""
    args = EngineArgs(
        load_format="synthetic",
        max_model_len=2048,
        num_gpu_blocks_override=NUM_BLOCKS,
        max_num_seqs=num_running,
        max_num_batched_tokens=max(8192, num_running),
        async_scheduling=is_ahead,
    )
    return Scheduler(args.create_engine_config(), NUM_BLOCKS)


def request(number: int, draw: random.Random) -> EngineCoreRequest:
    """A prompt of its own."""
    prompt = np.array(draw.choices(range(30_000), k=PROMPT_TOKENS), dtype=np.int32)
    sampling = SamplingSpec(temperature=0.0, max_tokens=MAX_TOKENS)
    return EngineCoreRequest(f"{draw.getrandbits(128):032x}-{number}", 0, 0, prompt, sampling, 0, None, 1)


def answer(plan: StepPlan, num_known: dict[str, int]) -> ModelRunnerOutput:
    """A token for each row whose last known token the plan computes."""
    starts = [row.num_computed_tokens for row in plan.new_rows] + plan.running_num_computed_tokens
    ids = [
        name
        for name, start, num_tokens in zip(plan.row_ids, starts, plan.num_scheduled_tokens, strict=True)
        if start + num_tokens >= num_known.get(name, PROMPT_TOKENS)
    ]
    for name in ids:
        num_known[name] = num_known.get(name, PROMPT_TOKENS) + 1
    return ModelRunnerOutput(plan.step, ids, [7] * len(ids), [], [], [], [])


def measure(num_running: int, num_waiting: int, num_steps: int, is_ahead: bool = False) -> Took:
    """Steps in which all that run decode, after those that computed their prompts."""
    draw, scheduler, num_known = random.Random(0), make_scheduler(num_running, is_ahead), dict[str, int]()
    for number in range(num_running + num_waiting):
        scheduler.add_request(request(number, draw))
    took = Took([], [])
    for _ in range(PREFILL_STEPS):
        plan = scheduler.schedule().plan
        scheduler.update_from_output(answer(plan, num_known))
        if plan.num_tokens == plan.num_rows == num_running:
            break
    under_way = [scheduler.schedule().plan] if is_ahead else []
    for _ in range(num_steps):
        begun_at = time.perf_counter_ns()
        plan = scheduler.schedule().plan
        planned_at = time.perf_counter_ns()
        under_way.append(plan)
        output = answer(under_way.pop(0), num_known)
        answered_at = time.perf_counter_ns()
        scheduler.update_from_output(output)
        took.update.append(time.perf_counter_ns() - answered_at)
        took.schedule.append(planned_at - begun_at)
        assert plan.num_rows == num_running, f"{plan.num_rows} rows"
    return took


def microseconds(steps: list[int], percent: int) -> str:
    """A percentile of the steps."""
    return f"{statistics.quantiles(steps, n=100)[percent - 1] / 1e3:.0f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 10_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    print("| running | waiting | schedule, median | update, median | both, median | both, p99 |")
    print("| --- " * 6 + "|")
    for num_waiting in options.waiting:
        for num_running in options.running:
            took = measure(num_running, num_waiting, options.steps, options.ahead)
            cells = [microseconds(steps, 50) for steps in (took.schedule, took.update, took.both())]
            cells.append(microseconds(took.both(), 99))
            print(f"| {num_running} | {num_waiting} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
