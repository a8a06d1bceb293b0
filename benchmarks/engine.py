"""Measures the engine without a server: `LLM.generate` over random prompts, tokens a second.

.venv/bin/python benchmarks/engine.py [--batch 1 8 32] [--dtype bfloat16] [--model MODEL]
"""

import argparse
import random
import statistics
import time

from vllm_obs import LLM, SamplingParams
from vllm_obs.engine.frontend.llm_prompts import Prompt

LOW, HIGH = 1000, 30_000
"""Token ids are drawn from here: ordinary words of most vocabularies."""


def main() -> None:
    """Load once, run each batch some times; the first run of all is not counted."""
    options = _arguments()
    draw = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=options.output_len, ignore_eos=True)
    with LLM(options.model, dtype=options.dtype, max_num_seqs=max(options.batch)) as llm:
        llm.generate(_prompts(draw, 1, options.input_len), params, use_tqdm=False)
        for batch in options.batch:
            rates = []
            for _ in range(options.runs):
                prompts = _prompts(draw, batch, options.input_len)
                begun_at = time.monotonic()
                llm.generate(prompts, params, use_tqdm=False)
                rates.append(batch * options.output_len / (time.monotonic() - begun_at))
            print(f"batch {batch:3}: {statistics.median(rates):7.1f} tokens/s ({min(rates):.1f}-{max(rates):.1f})")


def _prompts(draw: random.Random, count: int, length: int) -> list[Prompt]:
    return [draw.choices(range(LOW, HIGH), k=length) for _ in range(count)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
