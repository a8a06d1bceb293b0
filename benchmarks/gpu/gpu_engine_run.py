"""One model in this process: decoding at several batch sizes, with graphs and eagerly; a line of JSON each.

It is run by `gpu_throughput.py` as `python gpu_engine_run.py JSON`.
"""

import gc
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.client_inproc import InprocClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, SamplingSpec
from vllm_obs.engine.model.source import resolve_model
from vllm_obs.engine.model_size import ITEM_BYTES, model_size

LEAST_ID = 3
NUM_IDLE = 8
"""Steps without a word after which nothing is under way any more."""
MAX_SILENT = 1000
CACHE_BLOCK = 16
SHARE_OF_FREE = 0.9
STEP_BYTES = 3 << 30
"""Of activations, of logits (sorted once to see what a step takes) and of graphs."""


class Order(NamedTuple):
    """What to run, in these modes (graphs, eager).

    `seconds` is of one batch size in one mode; nothing begins after `deadline` (monotonic s).
    """

    model: str
    device: str
    modes: list[str]
    batches: list[int]
    input_len: int
    most_output_len: int
    seconds: float
    deadline: float


def main() -> None:
    """Print a line for each mode that begins, and for each measurement as soon as there is one."""
    order = Order(**json.loads(sys.argv[1]))
    for mode in order.modes:
        if time.monotonic() < order.deadline:
            say({"begun": mode})
            _run_mode(order, mode)
        else:
            say({"mode": mode, "batch": "any", "left_out": "its time was up"})


def say(line: dict[str, Any]) -> None:
    """One object a line."""
    print(json.dumps(line), flush=True)


def _run_mode(order: Order, mode: str) -> None:
    batches = _batches_with_room(order)
    for batch in order.batches:
        if batch not in batches:
            say({"mode": mode, "batch": batch, "left_out": "the GPU has no memory for its keys and values"})
    if not batches:
        return
    begun = time.monotonic()
    client = InprocClient(_config(order, batches, is_eager=mode == "eager"))
    loaded = {"mode": mode, "load_seconds": time.monotonic() - begun}
    for batch in batches:
        if time.monotonic() < order.deadline:
            say({**loaded, "batch": batch, **Decoding(client, order, batch).measured()})
        else:
            say({"mode": mode, "batch": batch, "left_out": "its time was up"})
    client.shutdown()
    del client
    gc.collect()
    torch.cuda.empty_cache()  # nothing where there is no GPU


def _batches_with_room(order: Order) -> list[int]:
    """Those whose keys and values fit beside the weights, and what a step needs."""
    if order.device != "cuda":
        return order.batches
    sizes, (free, _) = _sizes(order), torch.cuda.mem_get_info()
    room = SHARE_OF_FREE * free - sizes["weight_bytes"] - STEP_BYTES
    each = (order.input_len + order.most_output_len + CACHE_BLOCK) * sizes["kv_bytes_per_token"]
    return [batch for batch in order.batches if batch * each <= room]


def _config(order: Order, batches: list[int], *, is_eager: bool) -> VllmConfig:
    """Few steps take every prompt; of the cache there is as much as the largest batch fills."""
    most, length = max(batches), order.input_len + order.most_output_len
    args = EngineArgs(
        model=order.model,
        load_format="dummy",
        device=order.device,
        attention_backend="auto" if order.device == "cuda" else "triton",
        enforce_eager=is_eager,
        cudagraph_capture_sizes=batches,
        max_model_len=length,
        max_num_seqs=most,
        max_num_batched_tokens=max(8192 if order.device == "cuda" else 64, most),
        num_gpu_blocks_override=most * -(-length // CACHE_BLOCK) + CACHE_BLOCK,
        enable_prefix_caching=False,
    )
    config = args.create_engine_config()
    return replace(config, observability=replace(config.observability, recorder="memory"))


@dataclass
class Decoding:
    """One batch: prompts first, which are not timed; then steps of one token for each of its rows."""

    client: InprocClient
    order: Order
    batch: int
    num_tokens: int = 0
    num_steps: int = 0

    def measured(self) -> dict[str, Any]:
        """Decode until the time is up or the first rows end, then end them all."""
        names = self._add()
        begun = time.monotonic()
        started: set[str] = set()
        while len(started) < self.batch:
            started.update(self._next().request_ids)
        prefilled = time.monotonic()
        seconds = self._decode(prefilled, min(prefilled + self.order.seconds, self.order.deadline))
        self.client.abort_requests(names)
        num_idle = 0
        while num_idle < NUM_IDLE:
            num_idle = num_idle + 1 if self.client.get_output() is None else 0
        return {
            "num_tokens": self.num_tokens,
            "num_steps": self.num_steps,
            "seconds": seconds,
            "prefill_seconds": prefilled - begun,
            "mean_seq_len": self.order.input_len + 1 + self.num_steps / 2,
            **_sizes(self.order),
        }

    def _add(self) -> list[str]:
        draw = np.random.default_rng(self.batch)
        vocab = _architecture(self.order).vocab_size
        names = [f"{self.batch}-{number}" for number in range(self.batch)]
        for name in names:
            prompt = draw.integers(LEAST_ID, vocab, self.order.input_len, dtype=np.int32)
            sampling = SamplingSpec(temperature=0.0, max_tokens=self.order.most_output_len)
            self.client.add_request(EngineCoreRequest(name, 0, 0, prompt, sampling, 0, None, time.monotonic_ns()))
        return names

    def _next(self) -> EngineCoreOutputs:
        """The next step that says anything: of steps in flight the first say nothing."""
        for _ in range(MAX_SILENT):
            output = self.client.get_output()
            if output is not None:
                if output.errors:
                    raise SystemExit(f"a request failed: {output.errors[0][2]}")
                return output
        raise SystemExit(f"the engine said nothing in {MAX_SILENT} steps")

    def _decode(self, begun: float, end: float) -> float:
        """How long it took."""
        now, num_rows, has_ended = begun, self.batch, False
        while now < end and num_rows == self.batch and not has_ended:
            output = self._next()
            now, num_rows = time.monotonic(), len(output.request_ids)
            has_ended = any(reason >= 0 for reason in output.finish_reasons)
            self.num_tokens += sum(output.num_new_tokens)
            self.num_steps += 1
        return now - begun


def _architecture(order: Order) -> Any:
    return resolve_model(order.model, "dummy").architecture


def _sizes(order: Order) -> dict[str, int]:
    """What a step reads: all weights that multiply, and keys and values of every token before it."""
    shape = _architecture(order)
    item = ITEM_BYTES["bfloat16"]
    return {
        "weight_bytes": model_size(shape).num_multiplied * item,
        "kv_bytes_per_token": 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * item,
    }


if __name__ == "__main__":
    main()
