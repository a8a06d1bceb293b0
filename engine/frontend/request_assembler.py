"""Deltas put together again: the offline outputs of one request."""

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput, SequenceDelta, TokenLogprob
from vllm_obs.engine.frontend.tokenizer import Tokenizer


class RequestAssembler:
    """Grows one `RequestOutput` by the deltas of its sequences; its `add` is their sink."""

    def __init__(self, output: RequestOutput, num_sequences: int, tokenizer: Tokenizer) -> None:
        self.output = output
        output.outputs = [CompletionOutput(index) for index in range(num_sequences)]
        self.changed = False
        self.failure: RequestFailedError | None = None
        self._tokenizer = tokenizer

    def add(self, delta: SequenceDelta) -> None:
        """Take in one delta."""
        self.changed = True
        self.failure = self.failure or delta.error
        sequence = self.output.outputs[delta.index]
        sequence.text += delta.text
        sequence.token_ids += delta.token_ids
        sequence.finish_reason = delta.finish_reason
        sequence.stop_reason = delta.stop_reason
        if delta.logprobs is not None:
            self._add_logprobs(sequence, delta.logprobs)
        if delta.prompt_logprobs is not None:
            self.output.prompt_logprobs = [
                None if entry is None else self._candidates(entry) for entry in delta.prompt_logprobs
            ]
        if delta.pooled is not None:
            self.output.pooled = delta.pooled
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, delta.num_cached_tokens)
        self.output.finished = all(sequence.finished() for sequence in self.output.outputs)

    def _add_logprobs(self, sequence: CompletionOutput, entries: list[TokenLogprob]) -> None:
        sequence.logprobs = (sequence.logprobs or []) + [self._candidates(entry) for entry in entries]
        sequence.cumulative_logprob = (sequence.cumulative_logprob or 0.0) + sum(
            entry.logprob for entry in entries
        )

    def _candidates(self, entry: TokenLogprob) -> dict[int, Logprob]:
        own = (entry.token_id, entry.logprob, entry.rank)
        return {
            token_id: Logprob(logprob, rank, self._tokenizer.token_str(token_id))
            for token_id, logprob, rank in (own, *entry.top)
        }
