"""What `vllm-obs profile --kind samples` orders and prints."""

from typing import Any

import pytest
from sample_sets import engine_samples

from vllm_obs.cli.main import main
from vllm_obs.cli.profile_tables import profile_words
from vllm_obs.telemetry.sample_table import sample_table

PROFILE: dict[str, Any] = {
    "profile": "p1",
    "kind": "samples",
    "state": "written",
    "directory": "/run/profiles/p1",
    "operators": [],
    "samples": sample_table([engine_samples()]),
    "sampling": {
        "profile": "p1",
        "sampler": "in-process",
        "says": "each process samples itself: py-spy is not installed",
        "missing": ["Worker_TP1"],
    },
    "parts": [],
    "files": [{"name": "merged.speedscope.json", "num_bytes": 12_300}],
}


def test_the_table_for_people() -> None:
    assert (
        "\n".join(profile_words(PROFILE, None))
        == """\
EngineCore: 10 samples, 4 of them ran, 0.04 s of CPU
    cpu ms     cpu     ran  samples  function
      35.0 100.0 %       4        4  EngineCore.step  vllm_obs/engine/core.py
       0.0   0.0 %       0        6  Queue.get  queue.py

Sampled with in-process: each process samples itself: py-spy is not installed.
Worker_TP1 did not answer in time: it may hang; only py-spy could see where.
Files in /run/profiles/p1:
  merged.speedscope.json                   12 kB  open https://www.speedscope.app, then Browse"""
    )


def test_a_rate_that_is_no_number_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--kind", "samples", "--rate", "often"]) == 78
    shown = capsys.readouterr().err
    assert "'often' is not a number" in shown
    assert shown.count("\n") == 1
