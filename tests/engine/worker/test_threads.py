"""How threads wait is set once, and never against what the environment says."""

import os

import pytest

from vllm_obs.engine.worker.threads import SPIN_COUNT, limit_spinning


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SPIN_COUNT),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_the_environment_s_own_choice_is_kept(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
