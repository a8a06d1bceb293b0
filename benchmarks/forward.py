"""Prints how long a forward pass of the default model takes: decode steps by batch size, prompts by length."""

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # as the workers do: it must come before torch

import torch  # noqa: E402

from vllm_obs.engine.args import EngineArgs  # noqa: E402
from vllm_obs.engine.attention.batch import AttentionBatch  # noqa: E402
from vllm_obs.engine.config import Dtype, VllmConfig  # noqa: E402
from vllm_obs.engine.model.interface import DecoderModel, PagedKVCache  # noqa: E402
from vllm_obs.engine.model.loader import load_model  # noqa: E402

BLOCK_SIZE = 16
DECODE_ROWS = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS = (128, 512, 2048)


def config(model: str | None, dtype: Dtype) -> VllmConfig:
    """A model with a context of 4096 tokens, or its own limit where that is less."""
    whole = EngineArgs(model=model, dtype=dtype, device="cpu").create_engine_config()
    return replace(whole, model=replace(whole.model, max_model_len=min(4096, whole.model.max_model_len)))


class Steps:
    """Runs steps of random tokens over a cache whose blocks lie scattered."""

    def __init__(self, model: DecoderModel, num_blocks: int) -> None:
        self.model = model
        self.cache: PagedKVCache = model.allocate_kv_cache(num_blocks, BLOCK_SIZE)
        self.blocks = torch.randperm(num_blocks - 1) + 1

    def run(self, num_rows: int, num_queries: int, seq_len: int) -> None:
        """`num_rows` sequences that compute their last `num_queries` of `seq_len` tokens, then logits for each."""
        tables = self.blocks[: num_rows * (seq_len // BLOCK_SIZE)].view(num_rows, -1)
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


def timed(run: Callable[[], None], seconds: float) -> str:
    """Best and median milliseconds over that many seconds, and page faults of the median step."""
    run()
    times: list[float] = []
    faults: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 3:
        faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
    middle = len(times) // 2
    best, median = min(times) * 1e3, sorted(times)[middle] * 1e3
    return f"{best:8.1f} {median:8.1f} {sorted(faults)[middle]:8d}"


def main() -> None:
    """Load the model once, then time each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--context", type=int, default=192, help="tokens in the cache of each decoding sequence")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to repeat each shape")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    model = load_model(config(arguments.model, arguments.dtype))
    print(f"{arguments.dtype}, {torch.get_num_threads()} threads, loaded in {time.perf_counter() - begun:.2f} s")
    steps = Steps(model, 32 * (arguments.context // BLOCK_SIZE) + 2048 // BLOCK_SIZE + 1)
    print("step                     best ms   median   faults")
    for rows in DECODE_ROWS:
        run = partial(steps.run, rows, 1, arguments.context)
        print(f"decode {rows:3d} rows        {timed(run, arguments.seconds)}", flush=True)
    for tokens in PROMPT_TOKENS:
        run = partial(steps.run, 1, tokens, tokens)
        print(f"prompt {tokens:4d} tokens     {timed(run, arguments.seconds)}", flush=True)


if __name__ == "__main__":
    main()
