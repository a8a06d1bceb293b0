"""PromptMetrics: where prompt tokens came from, each counted once, and what preemption threw away."""

from typing import NamedTuple

from vllm_obs.telemetry.live_sequences import LiveSequence, LiveSequences
from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.records import StepPlanned


class ComputedRow(NamedTuple):
    """A row of an answered step: tokens `begin` to `end` of a sequence were computed."""

    sequence: LiveSequence
    begin: int
    end: int


class PromptMetrics:
    """Counts from plans and answers of one engine."""

    def __init__(self, series: EngineSeries) -> None:
        self._series = series

    def preempted(self, planned: StepPlanned, live: LiveSequences) -> None:
        """A plan's victims lose what they had computed."""
        if not planned.preempted_ids:
            return
        reason = "priority" if planned.head_reason == "priority" else "kv_blocks"
        self._series.value("vllm:num_preemptions_total").add(len(planned.preempted_ids))
        self._series.value("vllm_obs_preemptions_total", reason).add(len(planned.preempted_ids))
        for sequence in live.some(planned.preempted_ids):
            self._series.value("vllm_obs_preempted_tokens_total").add(sequence.num_computed_tokens)
            sequence.lose_blocks()

    def admitted(self, planned: StepPlanned, live: LiveSequences, looks_up: bool) -> None:
        """A plan's newcomers were looked up in the prefix cache; those that come back are not counted again."""
        for request_id, num_cached in zip(planned.admitted_ids, planned.admitted_cached_tokens, strict=True):
            sequence = live.get(request_id)
            if sequence is None:
                continue
            self._count(sequence, num_cached, "local_cache_hit")
            if looks_up and not sequence.skips_cache:
                self._series.value("vllm:prefix_cache_queries_total").add(sequence.num_prompt_tokens)
                self._series.value("vllm:prefix_cache_hits_total").add(num_cached)
        if planned.resumed_ids:
            self._resumed(planned, live)

    def computed(self, row: ComputedRow) -> None:
        """A row's result is used."""
        sequence, begin, end = row
        high = sequence.num_high_tokens
        if begin < high:
            self._recomputed(sequence, begin, min(end, high))
        if end > high:
            sequence.num_high_tokens = end
        if sequence.num_counted_tokens < sequence.num_prompt_tokens:
            self._count(sequence, end, "local_compute")

    def _resumed(self, planned: StepPlanned, live: LiveSequences) -> None:
        """What the cache has now and the sequence itself never computed is found, the rest recomputed."""
        begins = dict(zip(planned.request_ids, planned.num_computed_tokens, strict=True))
        for sequence in live.some(planned.resumed_ids):
            self._count(sequence, begins.get(sequence.request_id, 0), "local_cache_hit")

    def _recomputed(self, sequence: LiveSequence, begin: int, end: int) -> None:
        self._series.value("vllm_obs_recomputed_tokens_total").add(end - begin)
        num_of_prompt = max(0, min(end, sequence.num_prompt_tokens) - begin)
        self._series.value("vllm:prompt_tokens_recomputed_total").add(num_of_prompt)

    def _count(self, sequence: LiveSequence, end: int, source: str) -> None:
        """Count the prompt up to `end`, as far as it has not been."""
        end = min(end, sequence.num_prompt_tokens)
        num_new = end - sequence.num_counted_tokens
        if num_new <= 0:
            return
        sequence.num_counted_tokens = end
        self._series.value("vllm:prompt_tokens_total").add(num_new)
        self._series.value("vllm:prompt_tokens_by_source_total", source).add(num_new)
        if source == "local_cache_hit":
            self._series.value("vllm:prompt_tokens_cached_total").add(num_new)
            self._series.value("vllm:prompt_tokens_cached_by_source_total", "device").add(num_new)
