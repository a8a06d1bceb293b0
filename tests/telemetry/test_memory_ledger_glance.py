"""Of a large process only the sums are looked up; its parts are those known before, never more than there is."""

import os
from pathlib import Path

import pytest

from vllm_obs.telemetry.memory_ledger_glance import LARGE_BYTES, glance
from vllm_obs.telemetry.memory_ledger_holding import Holding
from vllm_obs.telemetry.memory_ledger_measure import Measured

GIB = 1 << 30
HOLDING = Holding(
    "EngineCore_DP0", 7, added={"libraries": GIB}, allocated={"weights": 6 * GIB, "kv_cache": 9 * GIB}
)
ROLLUP = f"""\
55d0a0000000-7fff00000000 ---p 00000000 00:00 0                          [rollup]
Rss:            {10 * GIB // 1024} kB
Pss:            {9 * GIB // 1024} kB
Pss_Anon:       12 kB
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process of 10 GiB whose areas cannot be listed."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/statm").write_text(f"9999999 {10 * GIB // os.sysconf('SC_PAGE_SIZE')} 5 1 0 9 0\n")
    (tmp_path / "7/smaps_rollup").write_text(ROLLUP)
    return tmp_path


def test_a_large_process_has_the_parts_that_were_known(proc: Path) -> None:
    known = {"heap": 2 * GIB, "weights": 6 * GIB}
    assert glance(HOLDING, known, proc) == Measured(
        10 * GIB, 9 * GIB, {"weights": 6 * GIB, "heap": 2 * GIB}, is_rough=True
    )


def test_one_that_was_never_looked_up_has_those_that_it_recorded_as_far_as_there_is_room(proc: Path) -> None:
    parts = {"libraries": GIB, "weights": 6 * GIB, "kv_cache": 3 * GIB}
    assert glance(HOLDING, None, proc) == Measured(10 * GIB, 9 * GIB, parts, is_rough=True)


def test_a_small_one_is_measured_and_so_is_one_without_sums(proc: Path) -> None:
    assert glance(HOLDING, None, proc, large_bytes=11 * GIB) is None  # there is nothing to measure here
    (proc / "7/smaps").write_text("")
    (proc / "7/pagemap").write_bytes(b"")
    assert glance(HOLDING, None, proc, large_bytes=11 * GIB) == Measured(0, 0, {})
    (proc / "7/smaps_rollup").unlink()
    assert glance(HOLDING, None, proc) == Measured(0, 0, {})
    assert glance(Holding("EngineCore_DP0", 8), None, proc) is None


def test_this_process_is_looked_at_either_way() -> None:
    mine = Holding("APIServer_0", os.getpid())
    small, large = (glance(mine, {}, large_bytes=limit) for limit in (LARGE_BYTES, 0))
    assert small is not None
    assert large is not None
    assert (small.is_rough, large.is_rough, large.parts) == (False, True, {})
    assert large.resident_bytes == pytest.approx(small.resident_bytes, rel=0.2)
