"""SequenceMetrics: what each token and each ended sequence adds to its engine's series."""

from typing import Any

from vllm_obs.telemetry.genai_metrics import GenAiMetrics
from vllm_obs.telemetry.ledger import NATURAL_ENDINGS, SequenceLedger
from vllm_obs.telemetry.metric_series import Exemplar
from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.quantiles import Quantiles
from vllm_obs.telemetry.records import RequestEnded
from vllm_obs.telemetry.sequence_groups import SequenceGroups
from vllm_obs.telemetry.sequence_times import SECONDS_PER_NS, SequenceTimes
from vllm_obs.telemetry.token_metrics import TokenMetrics
from vllm_obs.telemetry.trace_exemplars import ExemplarClock

_HISTOGRAMS = {
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_inference_time_seconds": "inference",
    "vllm:request_time_per_output_token_seconds": "time_per_output_token",
}
_MEASURES = ("e2e", "queue", "prefill", "decode")


class SequenceMetrics:
    """Counts for all engines; who owns a sequence's series is passed in."""

    def __init__(self, quantiles: Quantiles, genai: GenAiMetrics, clock: ExemplarClock) -> None:
        self._quantiles = quantiles
        self._genai = genai
        self._clock = clock
        self._groups = SequenceGroups()
        self._tokens: dict[str, TokenMetrics] = {}

    def tokens(self, series: EngineSeries, num_tokens: int, gap_ns: int, sampled_at: int) -> None:
        """One more token for each of so many sequences, so long after the one before."""
        self._tokens_of(series).next(num_tokens, gap_ns, sampled_at)

    def _tokens_of(self, series: EngineSeries) -> TokenMetrics:
        tokens = self._tokens.get(series.engine)
        if tokens is None:
            tokens = self._tokens[series.engine] = TokenMetrics(series, self._quantiles)
        return tokens

    def closed(self, series: EngineSeries, ledger: SequenceLedger) -> None:
        """A sequence is over. Without an ending (its API server died) it counts as an error and no more."""
        ended = ledger.ended
        if ended is None:
            series.value("vllm:request_success_total", "error").add()
            return
        exemplar = self._clock.exemplar(ledger.submitted.trace_parent, 1, ended.ended_at)
        series.value("vllm:request_success_total", ended.finish_reason).add(1, exemplar)
        self._sizes(series, ledger, ended)
        self._times(series, ledger, ended)

    def state(self) -> Any:
        """In plain values."""
        return self._groups.state()

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self._groups.restore(state)

    def first_token(self, series: EngineSeries, ledger: SequenceLedger, sampled_at: int) -> None:
        """A sequence's first token, kept by the engine."""
        self._tokens_of(series).first()
        submitted = ledger.submitted
        seconds = (sampled_at - submitted.received_at) * SECONDS_PER_NS
        exemplar = self._clock.exemplar(submitted.trace_parent, seconds, sampled_at)
        series.histogram("vllm:time_to_first_token_seconds").observe(seconds, exemplar)
        self._quantiles.observe("ttft", series.engine, seconds, sampled_at)
        self._genai.first_token(submitted.operation, seconds)

    def _sizes(self, series: EngineSeries, ledger: SequenceLedger, ended: RequestEnded) -> None:
        submitted, num_tokens = ledger.submitted, ended.num_output_tokens
        num_sequences = max(submitted.num_sequences, 1)
        sizes = {
            "vllm:request_prompt_tokens": ended.num_prompt_tokens,
            "vllm:request_generation_tokens": num_tokens,
            "vllm:request_params_n": num_sequences,
            "vllm:request_params_max_tokens": submitted.max_tokens,
            "vllm:request_num_preemptions": ledger.num_preemptions,
            "vllm:request_prefill_kv_computed_tokens": ledger.num_prefill_computed_tokens,
        }
        for name, size in sizes.items():
            series.histogram(name).observe(size)
        for most in self._groups.end(ledger.request_id, num_sequences, num_tokens):
            series.histogram("vllm:request_max_num_generation_tokens").observe(most)
        if ledger.released is not None:
            num_discarded = max(0, ledger.released.num_output_tokens - num_tokens)
            series.value("vllm_obs_discarded_tokens_total").add(num_discarded)

    def _times(self, series: EngineSeries, ledger: SequenceLedger, ended: RequestEnded) -> None:
        times = SequenceTimes.of(ledger, ended)
        for name, field in _HISTOGRAMS.items():
            seconds = getattr(times, field)
            series.histogram(name).observe(seconds, self._exemplar(ledger, seconds))
        for measure in _MEASURES:
            self._quantiles.observe(measure, series.engine, getattr(times, measure), ledger.ended_at)
        for stage, num_ns in ledger.stage_ns().items():
            if num_ns > 0:
                seconds = num_ns * SECONDS_PER_NS
                histogram = series.histogram("vllm_obs_request_stage_seconds", stage)
                histogram.observe(seconds, self._exemplar(ledger, seconds))
        for reason, num_ns in ledger.waits.items():
            series.value("vllm_obs_request_wait_seconds_total", reason).add(max(0, num_ns) * SECONDS_PER_NS)
        if ended.num_output_tokens > 1:
            self._gaps(series, ledger, ended, times.time_per_output_token)

    def _gaps(self, series: EngineSeries, ledger: SequenceLedger, ended: RequestEnded, seconds: float) -> None:
        """It has a token after its first; vLLM's histogram counts 0 for the others, which is nobody's pace."""
        self._quantiles.observe("time_per_output_token", series.engine, seconds, ledger.ended_at)
        if ended.finish_reason in NATURAL_ENDINGS:
            self._genai.token_time(ledger.submitted.operation, seconds)

    def _exemplar(self, ledger: SequenceLedger, seconds: float) -> Exemplar | None:
        return self._clock.exemplar(ledger.submitted.trace_parent, seconds, ledger.ended_at)
