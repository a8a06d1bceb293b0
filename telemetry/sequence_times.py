"""SequenceTimes: the lengths that vLLM's per-request histograms show, taken from a finished ledger."""

from typing import NamedTuple

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import RequestEnded

SECONDS_PER_NS = 1e-9


class SequenceTimes(NamedTuple):
    """In seconds; zero for what a sequence never came to.

    Prefill, decode and inference contain the preemptions and stalls that fell into them, as vLLM's do.
    """

    e2e: float
    queue: float
    prefill: float
    decode: float
    inference: float
    time_per_output_token: float

    @classmethod
    def of(cls, ledger: SequenceLedger, ended: RequestEnded) -> "SequenceTimes":
        """The times of one sequence. Tokens that were made after its ending are not in them."""
        queue_ns = ledger.stage_ns()["queue"]
        first_at, last_at = ended.first_token_at, ended.last_token_at
        prefill_ns = inference_ns = 0
        if ledger.num_steps:
            scheduled_at = ledger.taken_at + queue_ns
            prefill_ns = (first_at or ended.ended_at) - scheduled_at
            inference_ns = (last_at or ended.ended_at) - scheduled_at
        decode = (last_at - first_at) * SECONDS_PER_NS
        num_gaps = ended.num_output_tokens - 1
        return cls(
            e2e=ledger.latency_ns * SECONDS_PER_NS,
            queue=queue_ns * SECONDS_PER_NS,
            # A sequence may be ended in the API server just before its first step begins in the core.
            prefill=max(0, prefill_ns) * SECONDS_PER_NS,
            decode=decode,
            inference=max(0, inference_ns) * SECONDS_PER_NS,
            time_per_output_token=decode / num_gaps if num_gaps > 0 else 0.0,
        )
