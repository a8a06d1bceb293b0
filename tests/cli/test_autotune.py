"""`vllm-obs autotune` without a GPU: it refuses in one line, and says what is out of bounds before that."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_obs.cli import autotune
from vllm_obs.cli.main import main
from vllm_obs.engine import device
from vllm_obs.engine.errors import ConfigError

EXIT_CONFIG = 78


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_NVIDIA_SIGNS", ())


def test_without_a_gpu_it_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autotune"]) == EXIT_CONFIG
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == "vllm-obs: autotune times kernels on an NVIDIA GPU, and this machine has none\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--batch", "0"], "--batch 0 is not between 1 and 4096"),
        (["--context", "8"], "--context 8 is not between 16 and 1.04858e+06"),
        (["--seconds", "0.5"], "--seconds 0.5 is not between 1 and 86400"),
        (["--batch", "many"], "--batch: 'many' is not a whole number"),
        (["--kernel", "x"], "unexpected argument --kernel"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_limit(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["autotune", *words]) == EXIT_CONFIG
    assert capsys.readouterr().err == f"vllm-obs: {complaint}\n"


def test_a_torch_that_sees_no_gpu_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_NVIDIA_SIGNS", (Path("/"),))
    blind = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), __version__="2.13.0+cpu")
    monkeypatch.setitem(sys.modules, "torch", blind)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"needs a torch with CUDA; torch 2\.13\.0\+cpu sees no GPU"):
        autotune.check_gpu()


def test_it_is_tuned_for_the_models_sizes() -> None:
    assert autotune._shape(None).name == "llama-3-8b"
    shape = autotune._shape("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert (shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.has_head_norms) == (576, 9, 3, False)


def test_a_model_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such model"):
        autotune._shape("/nowhere/at/all")
