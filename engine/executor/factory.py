"""Which executor a configuration asks for."""

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.telemetry.recorder import ProcessRecorder


def make_executor(config: VllmConfig, recorder: ProcessRecorder) -> Executor:
    """The configured executor, not yet initialized. Only its own modules are loaded."""
    backend = config.parallel.distributed_executor_backend
    if config.parallel.nnodes > 1:
        from vllm_obs.engine.executor.multi_node import MultiNodeExecutor

        return MultiNodeExecutor(config, recorder)
    if backend == "ray":
        from vllm_obs.engine.executor.ray_executor import RayExecutor

        return RayExecutor(config, recorder)
    if backend == "mp":
        from vllm_obs.engine.executor.multiproc import MultiprocExecutor

        return MultiprocExecutor(config, recorder)
    if config.parallel.world_size != 1:
        raise ConfigError(f"the uni executor runs one rank, not {config.parallel.world_size}; use mp")
    from vllm_obs.engine.executor.uniproc import UniprocExecutor

    return UniprocExecutor(config, recorder)
