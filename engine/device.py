"""Which device a model is run on."""

from pathlib import Path

from vllm_obs.engine.config import Device
from vllm_obs.engine.errors import ConfigError

_NVIDIA_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))


def detect_device(asked: str) -> Device:
    """cuda where the NVIDIA driver shows a device (no torch is needed to see it), cpu otherwise."""
    has_nvidia = any(sign.exists() for sign in _NVIDIA_SIGNS)
    if asked == "cuda" and not has_nvidia:
        raise ConfigError(f"--device cuda, but there is no NVIDIA device ({_NVIDIA_SIGNS[0]} does not exist)")
    return "cuda" if asked != "cpu" and has_nvidia else "cpu"
