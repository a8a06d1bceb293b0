"""Prints how long a forward pass of the default model takes: decode steps by batch size, prompts by length.

With several --quantization they take turns, step by step, so that what else the machine does is shared out evenly.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # as the workers do: it must come before torch

import torch  # noqa: E402

from vllm_obs.engine.args import EngineArgs  # noqa: E402
from vllm_obs.engine.attention.batch import AttentionBatch  # noqa: E402
from vllm_obs.engine.attention.kv_cache import BlockedKVCache  # noqa: E402
from vllm_obs.engine.config import Dtype, VllmConfig  # noqa: E402
from vllm_obs.engine.kernels.cpu.program import LABEL_FIELD, Records, Times  # noqa: E402
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder  # noqa: E402
from vllm_obs.engine.model.interface import DecoderModel, PagedKVCache  # noqa: E402
from vllm_obs.engine.model.loader import load_model  # noqa: E402
from vllm_obs.engine.model.operator_label import read_label  # noqa: E402

BLOCK_SIZE = 16
DECODE_ROWS = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS = (128, 512, 2048)


def config(model: str | None, dtype: Dtype, quantization: str) -> VllmConfig:
    """A model with a context of 4096 tokens, or its own limit where that is less."""
    arguments = EngineArgs(model=model, dtype=dtype, device="cpu", quantization=quantization)
    whole = arguments.create_engine_config()
    return replace(whole, model=replace(whole.model, max_model_len=min(4096, whole.model.max_model_len)))


class Steps:
    """Runs steps of random tokens over a cache whose blocks lie scattered.

    The first `num_shared` tokens of a step's rows lie in the same blocks, as after a hit in the prefix cache.
    """

    def __init__(self, model: DecoderModel, num_blocks: int, num_shared: int = 0) -> None:
        self.model, self.num_shared = model, num_shared
        self.cache: PagedKVCache = model.allocate_kv_cache(num_blocks, BLOCK_SIZE)
        self.blocks = torch.randperm(num_blocks - 1) + 1
        if isinstance(self.cache, BlockedKVCache):
            # Untouched zeros all lie in one page, and would be read from the nearest cache.
            self.run(1, BLOCK_SIZE, BLOCK_SIZE)
            for layer in self.cache.layers:
                layer.copy_(layer[self.blocks[0]].clone())

    def run(self, num_rows: int, num_queries: int, seq_len: int) -> None:
        """`num_rows` sequences that compute their last `num_queries` of `seq_len` tokens, then logits for each."""
        tables = self.blocks[: num_rows * (seq_len // BLOCK_SIZE)].view(num_rows, -1).clone()
        num_shared = min(self.num_shared, seq_len - num_queries) // BLOCK_SIZE
        tables[:, :num_shared] = tables[0, :num_shared]
        positions = torch.arange(seq_len - num_queries, seq_len)
        slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        batch = AttentionBatch(
            num_decodes=num_rows if num_queries == 1 else 0,
            query_lens=[num_queries] * num_rows,
            seq_lens=[seq_len] * num_rows,
            block_tables=tables,
            slot_mapping=slots.flatten(),
            logits_indices=torch.arange(1, num_rows + 1) * num_queries - 1,
        )
        tokens = torch.randint(0, 1000, (num_rows * num_queries,))
        hidden = self.model.forward(tokens, positions.repeat(num_rows), batch, self.cache)
        self.model.compute_logits(hidden)


class OperatorTimes:
    """A watch that sums up what each operator took."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, int] = {}

    def program_ran(self, records: Records, times: Times) -> None:
        """Add a program's calls."""
        moments = times[:, 0] * 10**9 + times[:, 1]
        for number, (begin, end) in zip(records[:, LABEL_FIELD].tolist(), pairwise(moments.tolist()), strict=True):
            name = read_label(number).name
            self.nanoseconds[name] = self.nanoseconds.get(name, 0) + end - begin

    def text(self, num_steps: int) -> str:
        """Milliseconds a step, the longest first."""
        ordered = sorted(self.nanoseconds.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {took / 1e6 / num_steps:.2f}" for name, took in ordered)


def timed(runs: Sequence[Callable[[], None]], seconds: float) -> list[str]:
    """Best and median milliseconds over that many seconds, of CPU time too, and page faults of the median step."""
    for run in runs:
        run()
    times: list[list[tuple[float, int]]] = [[] for _ in runs]
    cpu_times: list[list[float]] = [[] for _ in runs]
    end = time.monotonic() + seconds * len(runs)
    while time.monotonic() < end or len(times[-1]) < 3:
        for run, found, cpu_found in zip(runs, times, cpu_times, strict=True):
            faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begun, cpu_begun = time.perf_counter(), time.process_time()
            run()
            took, cpu_took = time.perf_counter() - begun, time.process_time() - cpu_begun
            found.append((took, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before))
            cpu_found.append(cpu_took)
    lines = []
    for found, cpu_found in zip(times, cpu_times, strict=True):
        ordered, cpu = sorted(found), [1e3 * took for took in sorted(cpu_found)]
        median, faults = ordered[len(ordered) // 2]
        clock = f"{ordered[0][0] * 1e3:8.2f} {median * 1e3:8.2f}"
        lines.append(f"{clock} {cpu[0]:8.2f} {cpu[len(cpu) // 2]:8.2f} {faults:8d}")
    return lines


def operators(steps: Steps, run: Callable[[], None], num_steps: int = 20) -> str:
    """What each operator takes of a step, with a clock read between all kernels."""
    if not isinstance(steps.model, CompiledDecoder):
        return "not compiled"
    watch = OperatorTimes()
    steps.model.watch_kernels(watch)
    for _ in range(num_steps):
        run()
    steps.model.watch_kernels(None)
    return watch.text(num_steps)


def main() -> None:
    """Load the model once for each form, then time each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--quantization", nargs="*", default=["auto"], help="auto, none, or both")
    parser.add_argument("--context", type=int, default=192, help="tokens in the cache of each decoding sequence")
    parser.add_argument("--shared", type=int, default=0, help="how many of these lie in the same blocks for all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to repeat each shape")
    parser.add_argument("--rows", type=int, nargs="*", default=DECODE_ROWS)
    parser.add_argument("--prompts", type=int, nargs="*", default=PROMPT_TOKENS)
    parser.add_argument("--operators", action="store_true", help="also what each operator takes, in ms")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    forms: list[Steps] = []
    for quantization in arguments.quantization:
        begun = time.perf_counter()
        model = load_model(config(arguments.model, arguments.dtype, quantization))
        took = time.perf_counter() - begun
        print(f"{quantization}, {arguments.dtype}, {torch.get_num_threads()} threads, loaded in {took:.2f} s")
        num_blocks = 32 * (arguments.context // BLOCK_SIZE) + 2048 // BLOCK_SIZE + 1
        forms.append(Steps(model, num_blocks, arguments.shared))
    print("step                          best ms   median best CPU   median   faults")
    shapes = [(f"decode {rows:4d} rows", (rows, 1, arguments.context)) for rows in arguments.rows]
    shapes += [(f"prompt {tokens:4d} tokens", (1, tokens, tokens)) for tokens in arguments.prompts]
    for name, shape in shapes:
        runs = [partial(steps.run, *shape) for steps in forms]
        lines = timed(runs, arguments.seconds)
        for quantization, steps, run, line in zip(arguments.quantization, forms, runs, lines, strict=True):
            print(f"{name:18} {quantization:6} {line}", flush=True)
            if arguments.operators:
                print(f"    {operators(steps, run)}", flush=True)


if __name__ == "__main__":
    main()
