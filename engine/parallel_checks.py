"""Whether a model can be divided as asked: one line with the numbers where it cannot."""

from vllm_obs.engine.config import ModelArchitecture, ParallelConfig
from vllm_obs.engine.errors import ConfigError


def check_parallel(parallel: ParallelConfig, architecture: ModelArchitecture) -> None:
    """ConfigError with the numbers for what does not divide, or does not go together."""
    _check_tensor(parallel.tensor_parallel_size, architecture)
    num_stages, num_ranks = parallel.pipeline_parallel_size, parallel.world_size
    if num_stages > architecture.num_layers:
        raise ConfigError(f"--pipeline-parallel-size {num_stages}: the model has {architecture.num_layers} layers")
    if num_ranks > 1 and architecture.is_encoder:
        raise ConfigError(f"{architecture.name} is an encoder, which runs on one rank, not {num_ranks}")
    if num_ranks > 1 and parallel.distributed_executor_backend == "uni":
        raise ConfigError(f"--distributed-executor-backend uni runs one rank, not {num_ranks}; use mp")
    _check_ranks(parallel)


def _check_tensor(num_shards: int, architecture: ModelArchitecture) -> None:
    """Key and value heads may also be replicated: some number of ranks to each head."""
    if num_shards == 1:
        return
    flag = f"--tensor-parallel-size {num_shards}"
    heads, kv_heads = architecture.num_heads, architecture.num_kv_heads
    if heads % num_shards or (kv_heads % num_shards and num_shards % kv_heads):
        raise ConfigError(
            f"{flag}: {heads} query heads and {kv_heads} key-value heads cannot be divided over {num_shards} ranks"
        )
    if architecture.intermediate_size % num_shards:
        raise ConfigError(f"{flag} does not divide the intermediate size, {architecture.intermediate_size}")


def _check_ranks(parallel: ParallelConfig) -> None:
    engine, num_engines = parallel.data_parallel_rank, parallel.data_parallel_size
    if engine is not None and engine >= num_engines:
        raise ConfigError(f"--data-parallel-rank {engine} is not below --data-parallel-size {num_engines}")
    if parallel.node_rank >= parallel.nnodes:
        raise ConfigError(f"--node-rank {parallel.node_rank} is not below --nnodes {parallel.nnodes}")
    if parallel.world_size % parallel.nnodes:
        num_ranks = "1 rank" if parallel.world_size == 1 else f"{parallel.world_size} ranks"
        raise ConfigError(
            f"--nnodes {parallel.nnodes} does not divide the {num_ranks} of --tensor-parallel-size times "
            "--pipeline-parallel-size"
        )
    if parallel.nnodes > 1 and parallel.distributed_executor_backend != "mp":
        backend = parallel.distributed_executor_backend
        raise ConfigError(f"--nnodes {parallel.nnodes} goes with --distributed-executor-backend mp, not {backend}")
    if parallel.nnodes > 1 and num_engines > 1 and engine is None:
        raise ConfigError(
            f"--nnodes {parallel.nnodes} is for one engine, not {num_engines}: give each --data-parallel-rank, "
            "hosts and a --master-port of its own"
        )
