"""Prints how near forward passes come to what the machine can do: prompts to its peak, one row to its memory.

The peak is that of torch's own bfloat16 product, bandwidth that of a sum over memory, both measured in turn with
the passes, so that what else the machine does is shared out evenly. With one thread times are CPU times of that
thread, which other work on the machine hardly touches; what an operator takes is always by the clock.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # as the workers do: it must come before torch

import torch  # noqa: E402
from forward import BLOCK_SIZE, OperatorTimes, Steps, config  # noqa: E402

from vllm_obs.engine.config import ModelArchitecture  # noqa: E402
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder  # noqa: E402
from vllm_obs.engine.model.linear_calls import PackedHead  # noqa: E402
from vllm_obs.engine.model.loader import load_model  # noqa: E402

TOKENS = (128, 256, 512)
PEAK_SIZE = 2048
READ_BYTES = 256 << 20
"""Far more than any cache holds."""
NUM_PROFILED = 5


class Work(NamedTuple):
    """Floating-point operations of a prompt's pass, by operator; a multiplication and an addition are two.

    Counted is what is needed: of the last layer's ends and of the head one row, of attention what lies before.
    """

    by_operator: dict[str, float]

    @classmethod
    def of(cls, shape: ModelArchitecture, num_tokens: int) -> "Work":
        """All layers' matrices by the tokens, and each token's attention to those up to it."""
        hidden, inner, heads = shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim
        num_qkv = heads + 2 * shape.num_kv_heads * shape.head_dim
        ends = num_tokens * (shape.num_layers - 1) + 1
        pairs = num_tokens * (num_tokens + 1) // 2
        return cls(
            {
                "linear.qkv": 2.0 * num_qkv * hidden * num_tokens * shape.num_layers,
                "linear.output": 2.0 * hidden * heads * ends,
                "linear.gate_up": 4.0 * inner * hidden * ends,
                "linear.down": 2.0 * inner * hidden * ends,
                "linear.lm_head": 2.0 * hidden * shape.vocab_size,
                "attention": 4.0 * heads * pairs * shape.num_layers,
            }
        )

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.by_operator.values())


def timed(run: Callable[[], object]) -> float:
    """Seconds that a run takes: by the clock, or of CPU where there is one thread."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    run()
    return clock() - begun


class Turns:
    """Runs that take turns; the seconds of each."""

    def __init__(self, runs: dict[str, Callable[[], object]], seconds: float) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.times[next(iter(runs))]) < 3:
            for name, run in runs.items():
                self.times[name].append(timed(run))

    def middle(self, name: str) -> float:
        """The median."""
        return median(self.times[name])

    def text(self, name: str) -> str:
        """The median and the range, in ms."""
        found = self.times[name]
        return f"{self.middle(name) * 1e3:7.1f} ms ({min(found) * 1e3:.1f} to {max(found) * 1e3:.1f})"


def weight_bytes(model: CompiledDecoder) -> int:
    """What a step of one row reads of the layers' matrices and the head."""
    assert isinstance(model.lm_head, PackedHead)
    return model.programs.weight_bytes + model.lm_head.num_bytes


def where(steps: Steps, run: Callable[[], object], work: Work) -> str:
    """What each operator takes of a pass, and how fast it computes, the longest first."""
    assert isinstance(steps.model, CompiledDecoder)
    watch = OperatorTimes()
    steps.model.watch_kernels(watch)
    for _ in range(NUM_PROFILED):
        run()
    steps.model.watch_kernels(None)
    lines = []
    for name, took in sorted(watch.nanoseconds.items(), key=lambda item: -item[1]):
        seconds = took / 1e9 / NUM_PROFILED
        rate = work.by_operator.get(name, 0.0) / seconds / 1e9
        lines.append(f"      {name:20} {seconds * 1e3:7.2f} ms" + (f" {rate:6.0f} GFLOP/s" if rate else ""))
    return "\n".join(lines)


def main() -> None:
    """A model, three prompts, and one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--quantization", choices=["auto", "none"], default="auto")
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS, help="of a prompt, in one step")
    parser.add_argument("--context", type=int, default=192, help="tokens in the cache of the decoding row")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    whole = config(arguments.model, "bfloat16", arguments.quantization)
    model = load_model(whole)
    assert isinstance(model, CompiledDecoder), "this machine or model has no compiled kernels"
    steps = Steps(model, max(arguments.context, *arguments.tokens) // BLOCK_SIZE + 2)
    left, right = torch.randn(2, PEAK_SIZE, PEAK_SIZE).bfloat16()
    memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
    prompts = {f"{number} tokens": number for number in arguments.tokens}
    turns = Turns(
        {
            "peak": partial(torch.mm, left, right),
            "memory": memory.sum,
            "1 row": partial(steps.run, 1, 1, arguments.context),
        }
        | {name: partial(steps.run, 1, number, number) for name, number in prompts.items()},
        arguments.seconds,
    )
    peak = 2.0 * PEAK_SIZE**3 / turns.middle("peak")
    bandwidth = READ_BYTES / turns.middle("memory")
    num_turns = len(turns.times["peak"])
    print(f"{arguments.quantization}, {arguments.threads} threads, medians (ranges) of {num_turns} turns")
    print(f"torch's bfloat16 product of {PEAK_SIZE}: {turns.text('peak')}, {peak / 1e9:.0f} GFLOP/s, the peak")
    for name, number in prompts.items():
        work = Work.of(whole.model.architecture, number)
        rate = work.total / turns.middle(name)
        print(f"{name:10} {turns.text(name)}, {rate / 1e9:.0f} GFLOP/s, {rate / peak:.1%} of the peak")
        print(where(steps, partial(steps.run, 1, number, number), work))
    num_bytes = weight_bytes(model)
    floor = num_bytes / bandwidth
    print(f"sum of {READ_BYTES >> 20} MiB: {turns.text('memory')}, {bandwidth / 1e9:.1f} GB/s")
    print(
        f"1 row      {turns.text('1 row')}, {turns.middle('1 row') / floor:.2f} times the {floor * 1e3:.1f} ms "
        f"that {num_bytes / 1e6:.0f} MB of weights take to read"
    )


if __name__ == "__main__":
    main()
