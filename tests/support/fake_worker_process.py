"""A worker process over the fake model: `python -m fake_worker_process`; real queues and commands."""

import numpy as np
from fake_executor import FakeExecutor

from vllm_obs.engine.child_main import run_child
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.executor.worker_process import run_worker
from vllm_obs.engine.faults import InjectedFaultError, maybe_fault
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.wire import MAX_FRAME_BYTES

BLOCK_BYTES = 1000


class FakeWorker:
    """One rank. Fault sites: load_R (raising is a ConfigError), execute_R and sample_R for rank R.

    At large_answer raising makes the answer one that cannot be sent.
    """

    def __init__(self, config: VllmConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._model = FakeExecutor(1)

    def load_model(self) -> None:
        try:
            maybe_fault(f"load_{self._rank}")
        except InjectedFaultError as error:
            raise ConfigError("the model cannot be used") from error

    def kv_block_bytes(self) -> int:
        return BLOCK_BYTES

    def available_kv_bytes(self) -> int:
        """Less on every further rank."""
        return BLOCK_BYTES * (32 - self._rank)

    def initialize_cache(self, num_blocks: int) -> None:
        self._model = FakeExecutor(num_blocks, self._config.cache.block_size)

    def warm_up(self) -> None:
        pass

    def execute_model(self, plan: StepPlan) -> None:
        for request_id in plan.row_ids or [""]:
            maybe_fault(f"execute_{self._rank}", request_id)
        self._model.execute_model(plan).result()

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        maybe_fault(f"sample_{self._rank}")
        answer = self._model.sample_tokens(masks).result()
        try:
            maybe_fault("large_answer", "".join(answer.request_ids))
        except InjectedFaultError:
            vector = np.zeros(MAX_FRAME_BYTES // 4 + 1, np.float32)
            return answer._replace(pooled=[(request_id, vector) for request_id in answer.request_ids])
        return answer


if __name__ == "__main__":
    run_child(lambda owner: run_worker(owner, lambda setup, _: FakeWorker(setup.config, setup.rank)))
