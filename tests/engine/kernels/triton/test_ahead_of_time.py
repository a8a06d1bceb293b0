"""Every kernel compiles for every card within what it has; the document's table says what comes out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_obs.engine.kernels.triton.ahead_of_time import SHARED_BYTES
from vllm_obs.engine.kernels.triton.configs import CAPABILITIES, configs_for
from vllm_obs.engine.kernels.triton.specimens import specimens
from vllm_obs.engine.kernels.triton.table import BEGIN, END
from vllm_obs.engine.worker.profiler_kernels import OUR_KERNELS

DOCUMENT = Path(__file__).parents[4] / "docs/kernels.md"


def _table(folder: Path, *options: str) -> str:
    """What the command prints; it runs alone, as here kernels are interpreted, not compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "vllm_obs.engine.kernels.triton.table", *options]
    return subprocess.run(
        command,
        env={**environment, "TRITON_CACHE_DIR": str(folder)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
    ).stdout


def _check(found: list[dict[str, Any]]) -> None:
    for row in found:
        where = f"{row['name']} for sm_{row['capability']}"
        assert row["code_bytes"] > 0, where
        assert 0 < row["num_registers"] <= 255, where
        assert row["num_registers"] * 32 * row["num_warps"] <= 65536, where
        assert row["shared_bytes"] <= SHARED_BYTES[row["capability"]], where


def _kernel(row: dict[str, Any]) -> str:
    return str(row["name"].split(" ")[0].rstrip(","))


def test_each_kernel_compiles_for_a_card_and_attention_for_all(tmp_path: Path) -> None:
    """Every one for each card, in each configuration, is what the last test compiles."""
    found = json.loads(_table(tmp_path, "--quick", "--json"))
    _check(found)
    assert {_kernel(row) for row in found} == {
        name for table in map(configs_for, CAPABILITIES) for name in table.table
    }
    attention = [row["capability"] for row in found if _kernel(row) == "paged_attention"]
    assert attention == list(CAPABILITIES)
    assert {row["capability"] for row in found if _kernel(row) != "paged_attention"} == {*CAPABILITIES}


def test_every_configuration_is_in_some_specimen() -> None:
    for capability in CAPABILITIES:
        configs = configs_for(capability)
        used = [launch.config for _, launch in specimens(configs, capability)]
        unused = [
            (kernel, name)
            for kernel, classes in configs.table.items()
            for name, config in classes.items()
            if config not in used
        ]
        assert unused == []


def test_a_card_without_a_table_takes_that_of_the_nearest_below() -> None:
    assert configs_for(89) == configs_for(80)
    assert configs_for(120) == configs_for(100)
    assert configs_for(75) == configs_for(80)


def test_the_profiler_knows_the_kernels_by_name() -> None:
    used = {launch.kernel.fn.__name__ for _, launch in specimens(configs_for(90), 90)}
    assert used == OUR_KERNELS


@pytest.mark.long
def test_every_configuration_compiles_and_the_document_says_what_it_takes(tmp_path: Path) -> None:
    found = json.loads(_table(tmp_path, "--json"))
    _check(found)
    kernels = {name for table in map(configs_for, CAPABILITIES) for name in table.table}
    compiled = {(_kernel(row), row["capability"]) for row in found}
    assert compiled == {(kernel, capability) for kernel in kernels for capability in CAPABILITIES}
    written = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == _table(tmp_path).strip()
