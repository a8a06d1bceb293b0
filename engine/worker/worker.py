"""One rank: its device, its model, its cache and its runner, in the order they come to life."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.group_setup import ALONE_SETUP, GroupSetup, OutOfStepError, PeerLostError
from vllm_obs.engine.model.interface import DecoderModel, Progress, unwatched
from vllm_obs.engine.model.loader import load_model
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.model.peers import ALONE, Place
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_captures import CaptureSite, MakeCapture
from vllm_obs.engine.profile_order import OPERATORS, ProfileOrder
from vllm_obs.engine.startup_phases import startup_part
from vllm_obs.engine.worker.device_memory import cuda_cache_budget
from vllm_obs.engine.worker.execution import Execution
from vllm_obs.engine.worker.flight import Flight
from vllm_obs.engine.worker.gpu_memory import (
    CudaMemory,
    GpuMemory,
    MemoryHeld,
    OutOfGpuMemoryError,
    is_out_of_memory,
    out_of_memory,
)
from vllm_obs.engine.worker.graph_captures import Shards
from vllm_obs.engine.worker.graph_set_up import GraphSetUp, cuda_graph_set_up, why_no_graphs
from vllm_obs.engine.worker.host import free_memory_bytes, return_freed_memory
from vllm_obs.engine.worker.limit_trials import measure_limits
from vllm_obs.engine.worker.limits import MachineLimits
from vllm_obs.engine.worker.memory import cpu_cache_budget
from vllm_obs.engine.worker.model_runner import ModelRunner
from vllm_obs.engine.worker.placement import Placement, core_share, placement
from vllm_obs.engine.worker.profiler import OperatorCapture
from vllm_obs.engine.worker.warm_up import warm_up
from vllm_obs.telemetry.memory_samples import Ranges

if TYPE_CHECKING:
    from vllm_obs.engine.worker.process_group import RankGroup


class Worker:
    """What an executor drives: load_model, the two sizes, initialize_cache, warm_up; then steps."""

    def __init__(
        self,
        config: VllmConfig,
        rank: int = 0,
        on_layer: Progress = unwatched,
        group: GroupSetup = ALONE_SETUP,
    ) -> None:
        """ConfigError where the device that the rank would have is not there."""
        self.config = config
        self.rank = rank
        self._on_layer = on_layer
        self._group_setup = group
        self._group: RankGroup | None = None
        self._model: DecoderModel | None = None
        self._runner: ModelRunner | None = None
        self._capture: OperatorCapture | None = None
        self._memory: GpuMemory = CudaMemory()
        self._held = MemoryHeld()
        self._graph_set_up: GraphSetUp | None = None
        place = placement(config, rank)
        if config.model.device == "cuda":
            _take_gpu(place)
        torch.manual_seed(config.model.seed)
        if config.model.device == "cpu":
            _limit_threads(place)

    @property
    def model(self) -> DecoderModel:
        """The loaded model."""
        assert self._model is not None, "load_model comes first"
        return self._model

    @property
    def runner(self) -> ModelRunner:
        """The runner over the allocated cache."""
        assert self._runner is not None, "initialize_cache comes first"
        return self._runner

    def load_model(self) -> None:
        """Meet the other ranks and read this one's weights. ConfigError when they cannot be used, StartupError."""
        place = ALONE
        if self._group_setup.world_size > 1:
            with startup_part("meet the other ranks"):
                place = self._meet()
        with self._explained("while the weights were loaded"):
            self._model = load_model(self.config, place)
        return_freed_memory()
        if self.config.model.device == "cuda":
            self._held = MemoryHeld(weights=self._memory.allocated())
            if not why_no_graphs(self.config, self.model):
                self._graph_set_up = cuda_graph_set_up(self.config, self.model, self._memory, self._shards())

    def _meet(self) -> Place:
        from vllm_obs.engine.worker.process_group import RankGroup  # loads torch.distributed

        partition = Partition.of_rank(self.config.parallel, self.rank)
        self._group = RankGroup(self._group_setup, partition, torch.device(self.config.model.device))
        return Place(partition, self._group)

    def _shards(self) -> Shards:
        """Who replays graphs together with this rank."""
        if self._group is None:
            return Shards()
        device = torch.device(self.config.model.device)
        return Shards.of(self._group, self.config.parallel.tensor_parallel_size, device)

    def kv_block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.model.kv_block_bytes(self.config.cache.block_size)

    def available_kv_bytes(self) -> int:
        """Bytes that the KV cache may take on this rank."""
        if self.config.model.architecture.is_encoder:
            return 0
        if self.config.model.device == "cuda":
            with self._explained("in the largest step, which is tried before the cache is sized"):
                graph_bytes = 0 if self._graph_set_up is None else self._graph_set_up.bytes_needed()
                return cuda_cache_budget(self.config, self.model, self._memory, graph_bytes)
        return cpu_cache_budget(self.config, free_memory_bytes())

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the cache and make the runner. Raises ConfigError when the memory is not there after all."""
        size = num_blocks * self.kv_block_bytes()
        try:
            with self._explained(f"for a KV cache of {num_blocks} blocks"):
                kv_cache = self.model.allocate_kv_cache(num_blocks, self.config.cache.block_size)
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"a KV cache of {num_blocks} blocks ({size} bytes) could not be allocated; "
                "lower --kv-cache-memory-bytes or --gpu-memory-utilization"
            ) from error
        self._held = self._held._replace(kv_cache=size)
        self._runner = ModelRunner(self.config, self.model, kv_cache, self.rank, on_layer=self._on_layer)
        self._runner.eager_reason = why_no_graphs(self.config, self.model)

    def warm_up(self) -> None:
        """Capture graphs, if any, and run steps that nobody asked for: no request pays for first uses.

        Raises ConfigError when the GPU's memory is not enough for that.
        """
        with self._explained("in the warm-up"):
            self._capture_graphs()
            warm_up(self.config, self.runner)

    def _capture_graphs(self) -> None:
        if self._graph_set_up is None:
            return
        with startup_part("capture CUDA graphs"):
            self.runner.graphs, graph_bytes = self._graph_set_up.captured(self.runner.kv_cache)
        self._held = self._held._replace(graphs=graph_bytes)

    def machine_limits(self, weights: Ranges) -> MachineLimits:
        """What this machine does at best, with the threads that steps have; `weights` lie in the host's memory."""
        dtype: torch.dtype = getattr(torch, self.config.model.dtype)
        return measure_limits(self.model, dtype, torch.device(self.config.model.device), weights)

    def execute_model(self, plan: StepPlan) -> None:
        """Run the forward pass of a plan. Whatever fails, what the plan releases is released."""
        if self._capture is None:
            self._execute(plan)
        else:
            self._execute_captured(plan, self._capture)

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """Sample the plan that ran last."""
        return self.answer(self.launch_sampling(masks))

    def launch_sampling(self, masks: GrammarMasks | None) -> Flight:
        """Queue the sampling of the plan that ran last, for `answer` to wait for. A captured step ends here."""
        if self._capture is None:
            return self._launch(masks)
        return self._launch_captured(masks, self._capture)

    def answer(self, flight: Flight) -> ModelRunnerOutput:
        """The answer of a step; those before it are taken first."""
        with self._in_step():
            return self.runner.answer(flight)

    def take_exchange_ns(self) -> int:
        """How long this rank was in exchanges with others since this was asked last."""
        return 0 if self._group is None else self._group.take_exchange_ns()

    def take_execution(self) -> Execution:
        """How the step that was sampled last was run."""
        return self.runner.take_execution()

    @property
    def profile_kinds(self) -> dict[str, MakeCapture]:
        """The profiles a worker takes of its steps, by kind."""
        return {OPERATORS: self._capture_operators}

    def _execute(self, plan: StepPlan) -> None:
        self.runner.begin(plan)
        maybe_fault("execute_model")
        with self._in_step():
            self.runner.forward()

    def _launch(self, masks: GrammarMasks | None) -> Flight:
        maybe_fault("sample_tokens")
        with self._in_step():
            return self.runner.launch_sampling(masks)

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """An error in the middle of exchanges leaves the ranks out of step: that ends them, not only the step."""
        try:
            yield
        except (PeerLostError, MemoryError):
            raise
        except Exception as error:
            if self._is_full(error):
                message = out_of_memory(error, "in a step", self._held, self._memory)
                raise (OutOfGpuMemoryError if self._group is None else OutOfStepError)(message) from error
            if self._group is None:
                raise
            raise OutOfStepError(f"{type(error).__name__} in the middle of a step") from error

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """A GPU out of memory at the start is a ConfigError: who holds what, and which flags to change."""
        try:
            yield
        except RuntimeError as error:
            if not self._is_full(error):
                raise
            raise ConfigError(out_of_memory(error, doing, self._held, self._memory)) from error

    def _is_full(self, error: Exception) -> bool:
        """Whether it is the GPU's memory that was not enough; a host says what its libraries say of its own."""
        return isinstance(error, torch.OutOfMemoryError) or (
            self.config.model.device == "cuda" and is_out_of_memory(error)
        )

    def _execute_captured(self, plan: StepPlan, capture: OperatorCapture) -> None:
        self.runner.read_answers()  # or what is still under way on the device would count as this step's
        capture.begin_step(plan)
        try:
            self._execute(plan)
        except BaseException:
            capture.drop_step()
            raise

    def _launch_captured(self, masks: GrammarMasks | None, capture: OperatorCapture) -> Flight:
        try:
            flight = self._launch(masks)
            output = self.answer(flight)
        except BaseException:
            capture.drop_step()
            raise
        capture.end_step(output)
        if capture.is_over:
            self._capture = None
        return flight

    def _capture_operators(self, order: ProfileOrder, site: CaptureSite) -> OperatorCapture:
        self._capture = OperatorCapture(order, site, self.model, self.config.model.device)
        return self._capture

    def shutdown(self) -> None:
        """Let go of the cache and the weights; idempotent."""
        self._runner = None
        self._graph_set_up = None
        self._model = None
        if self.config.model.device == "cuda":
            torch.cuda.empty_cache()


def _take_gpu(place: Placement) -> None:
    """Make this rank's GPU the one that "cuda" means in this process. ConfigError when there are too few."""
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here")
    num_devices = torch.cuda.device_count()
    if num_devices < place.num_local_ranks:
        raise ConfigError(f"{place.num_local_ranks} ranks of this host need a GPU each; torch finds {num_devices}")
    torch.cuda.set_device(place.local_rank)


def _limit_threads(place: Placement) -> None:
    """Use at most this rank's share of the cores the process may use; OMP_NUM_THREADS, when set, is kept."""
    share = core_share(place)
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > share:
        torch.set_num_threads(share)
