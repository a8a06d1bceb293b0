"""Which implementation of attention a model runs with, by name, and why."""

import os
from importlib.util import find_spec
from typing import NamedTuple

from vllm_obs.engine.errors import ConfigError

LEAST_CAPABILITY = (8, 0)
"""Of CUDA devices that Triton's kernels are compiled and tabled for."""


class Backend(NamedTuple):
    """One of `compiled` (kernels for CPUs), `torch` and `triton`, and the reason for the log."""

    name: str
    reason: str


NOTHING_COMPILED = Backend(
    "torch", "there are no compiled kernels for this machine, the model's shapes or --block-size"
)


def choose_backend(asked: str, device: str, capability: tuple[int, int] | None = None) -> Backend:
    """The backend for `--attention-backend`, on `cpu` or on a `cuda` device of that compute capability.

    ConfigError when triton is asked for where it cannot run.
    """
    if asked == "torch":
        return Backend("torch", "asked for")
    obstacle = _obstacle(device, capability)
    if asked == "triton":
        if obstacle is not None:
            raise ConfigError(f"--attention-backend triton: {obstacle}")
        return Backend("triton", "asked for")
    if device == "cpu":
        return Backend("compiled", "the device is a CPU")
    if obstacle is not None:
        return Backend("torch", obstacle)
    return Backend("triton", "the device is a GPU")


def _obstacle(device: str, capability: tuple[int, int] | None) -> str | None:
    """Why Triton's kernels cannot run there."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "the device is a CPU, where only Triton's slow interpreter runs (set TRITON_INTERPRET=1)"
    if capability is not None and capability < LEAST_CAPABILITY:
        found, least = ("{}.{}".format(*one) for one in (capability, LEAST_CAPABILITY))
        return f"the GPU has compute capability {found}, at least {least} is needed"
    return None
