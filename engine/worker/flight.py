"""Flight: a step that is all queued on its device, and whose answer is taken when it is there."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan, WorkerMoments
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.launched import Launched
from vllm_obs.engine.sampling.sampler import SampledTokens
from vllm_obs.engine.worker.input_batch import Int64Array
from vllm_obs.engine.worker.pooler import NO_VECTORS, NOBODYS_TOKEN, LaunchedVectors
from vllm_obs.engine.worker.prompt_scores import BROKEN_PROMPT, LaunchedScores

NOTHING_SAMPLED = SampledTokens([], [], [])


@dataclass(eq=False)
class Flight:
    """`moments` lack their end, which `clock` tells when the answer is taken.

    rows: int64 (R,), of the input batch at `epoch`, that `launched` samples, if any. prompts: log-probabilities of
    spans of prompts, by request. vectors: of pooled prompts. All is begun; the output is `taken` once.
    """

    plan: StepPlan
    moments: WorkerMoments
    clock: Callable[[], int]
    rows: Int64Array | None = None
    epoch: int = 0
    batch: SamplingBatch | None = None
    launched: Launched | None = None
    prompts: list[tuple[str, LaunchedScores]] = field(default_factory=list)
    vectors: LaunchedVectors = NO_VECTORS
    taken: ModelRunnerOutput | None = None

    @property
    def tokens(self) -> torch.Tensor | None:
        """int64 (R,): what was sampled, where it is on the device only; -1 for a row that failed."""
        return None if self.launched is None else self.launched.tokens

    def answer(self) -> tuple[ModelRunnerOutput, SampledTokens]:
        """What the step gave, and what was sampled with the rows that failed. Waits for the device."""
        sampled = NOTHING_SAMPLED if self.launched is None else self.launched.result()
        request_ids, token_ids = self._answered(sampled)
        prompt_logprobs, broken = self._prompt_logprobs()
        pooled, unpooled = self.vectors.result()
        places = {request_id: place for place, request_id in enumerate(self.plan.row_ids)}
        pooled.sort(key=lambda pair: places[pair[0]])  # in plan order, as the sampled ones are
        output = ModelRunnerOutput(
            step=self.plan.step,
            request_ids=[*request_ids, *(request_id for request_id, _ in pooled)],
            token_ids=token_ids + [NOBODYS_TOKEN] * len(pooled),
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            failed=[*broken, *unpooled, *sampled.failed],
            moments=[self.moments._replace(sampled_at=self.clock())],
            pooled=pooled,
        )
        return output, sampled

    def _prompt_logprobs(self) -> tuple[list[tuple[str, Logprobs]], list[tuple[str, str, str]]]:
        """Of each span, and the requests whose logits are not finite."""
        found = [(request_id, result()) for request_id, result in self.prompts]
        broken = [(request_id, "invalid_logits", BROKEN_PROMPT) for request_id, one in found if one is None]
        return [(request_id, one) for request_id, one in found if one is not None], broken

    def _answered(self, sampled: SampledTokens) -> tuple[list[str], list[int]]:
        """The ids that got a token, in plan order, and their tokens."""
        request_ids = [] if self.batch is None else self.batch.request_ids
        if not sampled.failed:
            return request_ids, sampled.token_ids
        answered = [place for place, token in enumerate(sampled.token_ids) if token >= 0]
        return [request_ids[place] for place in answered], [sampled.token_ids[place] for place in answered]
