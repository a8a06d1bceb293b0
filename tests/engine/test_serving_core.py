"""What every grammar needs is there before a core that serves is READY, and only for models that have grammars."""

from dataclasses import replace
from typing import Any

import pytest
from fake_executor import tiny_config

from vllm_obs.engine import process
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.structured import token_table
from vllm_obs.telemetry.recorder import MemoryRecorder


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to a serving core, in order, without a model."""
    seen: list[str] = []

    def load(model: object) -> None:
        seen.append("table made")

    def make_core(*args: Any) -> None:
        seen.append("core made")

    monkeypatch.setattr(token_table, "load_token_table", load)
    monkeypatch.setattr(process, "make_core", make_core)
    return seen


def make(config: VllmConfig) -> None:
    process.make_serving_core(config, MemoryRecorder(), lambda cause: None)


def test_the_token_table_is_made_before_ready(events: list[str]) -> None:
    make(tiny_config())
    assert sorted(events) == ["core made", "table made"]


def test_a_synthetic_model_needs_none(events: list[str]) -> None:
    config = tiny_config()
    make(replace(config, model=replace(config.model, source="synthetic")))
    assert events == ["core made"]


def test_an_encoder_needs_none(events: list[str]) -> None:
    config = tiny_config()
    architecture = replace(config.model.architecture, name="BertModel")
    make(replace(config, model=replace(config.model, architecture=architecture)))
    assert events == ["core made"]


def test_a_table_that_cannot_be_made_keeps_nobody_from_serving(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: object) -> None:
        raise OSError("no tokenizer")

    monkeypatch.setattr(token_table, "load_token_table", fail)
    make(tiny_config())
    assert events == ["core made"]
