"""A run whose engine is restarted again and again keeps the rings of the last ones only."""

import time
from pathlib import Path

from vllm_obs.engine.old_rings import prune_old_rings


def test_the_last_ones_of_each_process_stay_whatever_their_numbers(tmp_path: Path) -> None:
    kept = ["EngineCore_DP0.ring", "APIServer_0.ring", "APIServer_0.1.ring", "run_facts.rec", "Worker_TP0.1.ring"]
    for name in kept:
        (tmp_path / name).touch()
    for number in (2, 3, 1):
        (tmp_path / f"EngineCore_DP0.{number}.ring").touch()
        time.sleep(0.01)
    assert prune_old_rings(str(tmp_path), num_kept=2) == 1
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "EngineCore_DP0.3.ring", "EngineCore_DP0.1.ring"}


def test_without_a_directory_there_is_nothing_to_prune(tmp_path: Path) -> None:
    assert prune_old_rings("") == prune_old_rings(str(tmp_path / "gone")) == 0
