"""Which device a model is run on."""

from pathlib import Path

import pytest

from vllm_obs.engine import device as device_module
from vllm_obs.engine.device import detect_device
from vllm_obs.engine.errors import ConfigError


def test_the_device_is_cuda_only_where_the_driver_shows_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "_NVIDIA_SIGNS", (tmp_path / "nvidiactl",))
    assert detect_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="no NVIDIA device"):
        detect_device("cuda")
    (tmp_path / "nvidiactl").touch()
    assert [detect_device(asked) for asked in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
