"""The attention backend is the one asked for, or the best for the device, with a reason."""

import pytest

from vllm_obs.engine.attention import backend as backend_module
from vllm_obs.engine.attention.backend import choose_backend
from vllm_obs.engine.errors import ConfigError


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backend_module, "find_spec", lambda _: object())


@pytest.mark.parametrize(
    ("asked", "device", "capability", "name"),
    [
        ("auto", "cpu", None, "compiled"),
        ("torch", "cpu", None, "torch"),
        ("auto", "cuda", (9, 0), "triton"),
        ("auto", "cuda", (7, 5), "torch"),
        ("torch", "cuda", (9, 0), "torch"),
        ("triton", "cuda", (8, 0), "triton"),
    ],
)
def test_the_choice(asked: str, device: str, capability: tuple[int, int] | None, name: str) -> None:
    assert choose_backend(asked, device, capability).name == name


def test_triton_on_a_cpu_is_refused_unless_it_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--attention-backend triton: the device is a CPU"):
        choose_backend("triton", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend("triton", "cpu") == ("triton", "asked for")


def test_triton_on_an_old_card_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"compute capability 7\.5, at least 8\.0 is needed"):
        choose_backend("triton", "cuda", (7, 5))


def test_without_the_package_a_gpu_takes_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "find_spec", lambda _: None)
    assert choose_backend("auto", "cuda", (9, 0)) == ("torch", "the package triton is not installed")
    with pytest.raises(ConfigError, match="not installed"):
        choose_backend("triton", "cuda", (9, 0))
