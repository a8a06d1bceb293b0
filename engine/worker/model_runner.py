"""Runs plans on one device: keeps the input batch, calls the model, samples if that is this rank's part."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import Float32Array, Logprobs
from vllm_obs.engine.model.interface import DecoderModel, PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan, WorkerMoments
from vllm_obs.engine.sampling.choice import best_tokens
from vllm_obs.engine.sampling.each_row import sample_rows
from vllm_obs.engine.sampling.logprobs import concatenate, gather_logprobs
from vllm_obs.engine.sampling.sampler import SampledTokens
from vllm_obs.engine.worker.input_batch import InputBatch, Int64Array
from vllm_obs.engine.worker.pooler import NOBODYS_TOKEN, Pooler
from vllm_obs.engine.worker.step_inputs import PromptSpan, StepInputs, prepare

PROMPT_LOGITS_BYTES = 32 * 2**20
"""How much of a prompt's logits exists at a time."""
BROKEN_PROMPT = "the model's logits for a token of the prompt are not finite"


class ModelRunner:
    """One model on one device with its paged cache. Calls come in pairs: execute_model, then sample_tokens.

    The model may be a part of one, whose other parts belong to other ranks: each runs every plan, and one samples.
    """

    def __init__(
        self,
        config: VllmConfig,
        model: DecoderModel,
        kv_cache: PagedKVCache,
        rank: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        on_layer: Progress = unwatched,
    ) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self._rank = rank
        self._is_output_rank = rank == config.parallel.output_rank
        self._makes_logits = Partition.of_rank(config.parallel, rank).is_last_stage
        self._clock = clock
        self._on_layer = on_layer
        self._device = torch.device(config.model.device)
        self._vocab_size = config.model.architecture.vocab_size
        self.input_batch = InputBatch(
            config.scheduler.max_num_seqs, config.model.max_model_len, config.cache.block_size, self._vocab_size
        )
        self._pooler = Pooler()
        self._plan: StepPlan | None = None
        self._inputs: StepInputs | None = None
        self._hidden: torch.Tensor | None = None
        self._received_at = self._prepared_at = self._forwarded_at = 0

    def execute_model(self, plan: StepPlan) -> None:
        """Apply the plan and run its forward pass; hidden states wait for sampling."""
        self.begin(plan)
        self.forward()

    def begin(self, plan: StepPlan) -> None:
        """Apply the plan to the input batch and work out what its forward pass reads."""
        self._plan, self._inputs, self._hidden = plan, None, None
        self._received_at = self._clock()
        self._pooler.forget(plan.released_ids)
        rows = self.input_batch.update(plan)
        if len(rows):
            num_scheduled = np.array(plan.num_scheduled_tokens, np.int64)
            self._inputs = prepare(self.input_batch, rows, num_scheduled, self._device)
        self._prepared_at = self._clock()

    @torch.inference_mode()
    def forward(self) -> None:
        """Run the forward pass of the plan begun last, if it has rows."""
        if (inputs := self._inputs) is not None:
            tokens, positions, attention = inputs.token_ids, inputs.positions, inputs.attention
            self._hidden = self.model.forward(tokens, positions, attention, self.kv_cache, self._on_layer)
        self._forwarded_at = self._clock()

    @torch.inference_mode()
    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """Sample the rows of the plan that ran last; its moments cover both calls."""
        plan, inputs, hidden = self._plan, self._inputs, self._hidden
        assert plan is not None, "sample_tokens follows execute_model"
        self._plan = self._inputs = self._hidden = None
        if inputs is not None and hidden is None:
            raise RuntimeError(f"the forward pass of step {plan.step} did not finish")
        begun_at = self._clock()
        if not self._is_output_rank:
            if self._makes_logits and inputs is not None and hidden is not None:
                self._lend_logits(inputs, hidden)
            return ModelRunnerOutput(plan.step, [], [], [], [], [], [self._moments(begun_at)])
        request_ids: list[str] = []
        sampled = SampledTokens([], [], [])
        prompt_logprobs: list[tuple[str, Logprobs]] = []
        broken: list[tuple[str, str, str]] = []
        pooled: list[tuple[str, Float32Array]] = []
        if inputs is not None and hidden is not None:
            for span in inputs.prompt_spans:
                if (logprobs := self._prompt_logprobs(span, hidden)) is None:
                    broken.append((span.request_id, "invalid_logits", BROKEN_PROMPT))
                else:
                    prompt_logprobs.append((span.request_id, logprobs))
            request_ids, sampled = self._sample(inputs, hidden, masks)
            if inputs.pool_spans:
                pooled, unpooled = self._pooler.pool(inputs.pool_spans, hidden)
                places = {request_id: place for place, request_id in enumerate(plan.row_ids)}
                pooled.sort(key=lambda pair: places[pair[0]])  # in plan order, as the sampled ones are
                broken += unpooled
        return ModelRunnerOutput(
            step=plan.step,
            request_ids=[*request_ids, *(request_id for request_id, _ in pooled)],
            token_ids=sampled.token_ids + [NOBODYS_TOKEN] * len(pooled),
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            failed=[*broken, *sampled.failed],
            moments=[self._moments(begun_at)],
            pooled=pooled,
        )

    def _sample(
        self, inputs: StepInputs, hidden: torch.Tensor, masks: GrammarMasks | None
    ) -> tuple[list[str], SampledTokens]:
        """The ids that got a token, in plan order, and what was sampled (failed rows named apart)."""
        rows = inputs.sampled_rows
        if not len(rows):
            return [], SampledTokens([], [], [])
        batch = self.input_batch.sampling_batch(rows)
        sampled_hidden = hidden[: len(rows)]
        sampled = sample_rows(lambda: self.model.compute_logits(sampled_hidden), batch, masks)
        self.input_batch.note_sampled(rows, sampled.token_ids)
        if not sampled.failed:
            return batch.request_ids, sampled
        answered = [place for place, token in enumerate(sampled.token_ids) if token >= 0]
        tokens = [sampled.token_ids[place] for place in answered]
        return [batch.request_ids[place] for place in answered], sampled._replace(token_ids=tokens)

    def _prompt_logprobs(self, span: PromptSpan, hidden: torch.Tensor) -> Logprobs | None:
        """Log-probabilities of a span, a bounded slice of its logits at a time; None if any are not finite."""
        parts: list[Logprobs] = []
        is_finite = True
        for tokens, logits in self._prompt_logits(span, hidden):  # all of them: other ranks make parts of each
            if is_finite := is_finite and bool(np.isfinite(best_tokens(logits)[1]).all()):
                parts.append(gather_logprobs(torch.log_softmax(logits, dim=-1), tokens, span.num_best))
        return concatenate(parts) if is_finite else None

    def _prompt_logits(self, span: PromptSpan, hidden: torch.Tensor) -> Iterator[tuple[Int64Array, torch.Tensor]]:
        """The tokens that come next and the logits that they had, a slice at a time."""
        num_positions = max(1, PROMPT_LOGITS_BYTES // (4 * self._vocab_size))
        for start in range(0, len(span.next_token_ids), num_positions):
            tokens = span.next_token_ids[start : start + num_positions].astype(np.int64)
            self._on_layer()  # a long prompt's logits take long: this is progress too
            first = span.hidden_start + start
            yield tokens, self.model.compute_logits(hidden[first : first + len(tokens)])

    def _lend_logits(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        """Make this shard's part of all the logits that the output rank asks for, in its order."""
        for span in inputs.prompt_spans:
            for _ in self._prompt_logits(span, hidden):
                pass
        if len(inputs.sampled_rows):
            self.model.compute_logits(hidden[: len(inputs.sampled_rows)])

    def _moments(self, begun_at: int) -> WorkerMoments:
        return WorkerMoments(
            rank=self._rank,
            received_at=self._received_at,
            prepared_at=self._prepared_at,
            forwarded_at=self._forwarded_at,
            sample_begun_at=begun_at,
            sampled_at=self._clock(),
        )
