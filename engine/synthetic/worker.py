"""SyntheticWorker: a rank without a model, which takes its time over each step and answers with filler."""

import time
from collections.abc import Callable
from typing import NamedTuple

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.model_size import ITEM_BYTES, model_size
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan, WorkerMoments
from vllm_obs.engine.synthetic.filler import Filler
from vllm_obs.engine.synthetic.rows import Rows, StepWork
from vllm_obs.engine.synthetic.step_time import StepTimeModel
from vllm_obs.engine.worker.limits import MachineLimits
from vllm_obs.telemetry.memory_samples import Ranges

AVAILABLE_BYTES = 1 << 40
"""No memory is taken for the cache, so what there is of it sets no limit to its size."""
_SHORTEST_SLEEP_NS = 2_000_000
"""What several layers have to wait is waited at once: to be woken for each costs more than they do."""

Meet = Callable[[int], None]
"""Wait until every rank has come to the end of this step's forward pass."""


class WorkerTime(NamedTuple):
    """How a rank tells the time (monotonic ns) and lets it pass (seconds)."""

    clock: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = WorkerTime()


def alone(step: int) -> None:
    """Meet nobody: there is one rank."""


class SyntheticWorker:
    """What an executor drives in place of a Worker; loads no torch and no weights.

    Tokens depend on the sequence's seed, its index and the position, so preemption, batching and ranks do not
    change them. Only the sampling of `allowed_token_ids` is honoured; grammar masks are not looked at.
    """

    def __init__(
        self,
        config: VllmConfig,
        rank: int = 0,
        on_layer: Callable[[], None] = lambda: None,
        timing: WorkerTime = REAL_TIME,
        meet: Meet = alone,
    ) -> None:
        self.config = config
        self.rank = rank
        self.model = StepTimeModel.from_values(config.model.synthetic_step_time)
        self._on_layer = on_layer
        self._clock, self._sleep = timing
        self._meet = meet
        self._filler = Filler(config.model.architecture)
        self._rows = Rows()
        self._plan: StepPlan | None = None
        self._work = StepWork([], [], 0)
        self._received_at = self._prepared_at = self._forwarded_at = 0

    def load_model(self) -> None:
        """There is nothing to load."""

    def kv_block_bytes(self) -> int:
        """Bytes that one block would take over all layers."""
        shape = self.config.model.architecture
        num_numbers = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
        return num_numbers * ITEM_BYTES[self.config.model.dtype] * self.config.cache.block_size

    def available_kv_bytes(self) -> int:
        """More than any cache would take."""
        return AVAILABLE_BYTES

    def initialize_cache(self, num_blocks: int) -> None:
        """There is nothing to allocate."""

    def warm_up(self) -> None:
        """There is nothing to warm."""

    def machine_limits(self, weights: Ranges) -> MachineLimits:
        """As the device is made up: its arithmetic takes so long a token, reading all weights as long as a step at
        least. Of several ranks each has a part of it."""
        size, dtype = model_size(self.config.model.architecture), self.config.model.dtype
        num_ranks, made_up = self.config.parallel.world_size, self.model
        return MachineLimits(
            dtype,
            _rate(size.flops_per_token / num_ranks, made_up.seconds_per_token),
            _rate(size.weight_bytes(dtype) / num_ranks, made_up.base_seconds),
        )

    def execute_model(self, plan: StepPlan) -> None:
        """Apply the plan and let the time of its forward pass go by, layer by layer."""
        self._plan = None
        self._received_at = self._clock()
        self._work = self._rows.update(plan)
        self._prepared_at = self._clock()
        maybe_fault("execute_model")
        if plan.num_rows:
            self._forward(plan)
        self._forwarded_at = self._clock()
        if plan.num_rows:
            self._meet(plan.step)
        self._plan = plan

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """Filler for the rows of the plan that ran last; its moments cover both calls."""
        maybe_fault("sample_tokens")
        plan, work = self._plan, self._work
        if plan is None:
            raise RuntimeError("the forward pass did not finish")
        self._plan = None
        begun_at = self._clock()
        token_ids = [self._filler.token(row.sampling, row.num_tokens) for row in work.sampled]
        return ModelRunnerOutput(
            step=plan.step,
            request_ids=[row.request_id for row in work.sampled],
            token_ids=token_ids,
            logprobs=self._logprobs(work, token_ids),
            prompt_logprobs=[
                (span.request_id, self._filler.logprobs(span.token_ids, span.num_best)) for span in work.spans
            ],
            failed=[],
            moments=[self._moments(begun_at)],
        )

    def launch_sampling(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """What a Worker only begins is done at once here."""
        return self.sample_tokens(masks)

    def answer(self, flight: ModelRunnerOutput) -> ModelRunnerOutput:
        """It is there."""
        return flight

    def shutdown(self) -> None:
        """There is nothing to let go of."""

    def _forward(self, plan: StepPlan) -> None:
        seconds = self.model.seconds(plan.num_tokens, plan.num_rows, self._work.num_context_tokens)
        num_ns, num_layers = int(seconds * 1e9), self.model.num_layers
        for layer in range(1, num_layers + 1):
            wait_ns = self._received_at + num_ns * layer // num_layers - self._clock()
            if wait_ns >= _SHORTEST_SLEEP_NS or (layer == num_layers and wait_ns > 0):
                self._sleep(wait_ns / 1e9)
            self._on_layer()

    def _logprobs(self, work: StepWork, token_ids: list[int]) -> list[tuple[str, Logprobs]]:
        return [
            (row.request_id, self._filler.logprobs([token_id], row.sampling.logprobs))
            for row, token_id in zip(work.sampled, token_ids, strict=True)
            if row.sampling.logprobs is not None
        ]

    def _moments(self, begun_at: int) -> WorkerMoments:
        return WorkerMoments(
            rank=self.rank,
            received_at=self._received_at,
            prepared_at=self._prepared_at,
            forwarded_at=self._forwarded_at,
            sample_begun_at=begun_at,
            sampled_at=self._clock(),
        )


def _rate(amount: float, seconds: float) -> float:
    """What takes no time has no limit that is known."""
    return amount / seconds if seconds else 0.0
