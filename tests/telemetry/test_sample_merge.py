"""The files of a capture's processes become one for people; what cannot be used is left out, and nothing fails."""

import json
from pathlib import Path

import pytest
from sample_sets import engine_samples

from vllm_obs.telemetry import sample_merge
from vllm_obs.telemetry.sample_collapsed import collapsed_text, ran_text
from vllm_obs.telemetry.sample_file import write_samples
from vllm_obs.telemetry.sample_merge import MERGED, MergeNote, merge, read_table
from vllm_obs.telemetry.sample_table import sample_table
from vllm_obs.telemetry.speedscope import speedscope_file

SETS = [engine_samples("Observer", 3), engine_samples("Worker_TP0", 1), engine_samples("Worker_TP1", 2)]


NOTE = MergeNote("p1", "in-process", "as was asked for", ["EngineCore_DP0"])


def write_all(directory: Path) -> None:
    for samples in SETS:
        write_samples(directory / f"{samples.role}.samples.json", samples)


def test_all_processes_are_merged_by_role_and_apart(tmp_path: Path) -> None:
    write_all(tmp_path)
    table = merge(tmp_path, NOTE._replace(version="0.1"))
    assert table == {
        "profile": "p1",
        "sampler": "in-process",
        "says": "as was asked for",
        "missing": ["EngineCore_DP0"],
        "roles": sample_table(SETS),
    }
    assert json.loads((tmp_path / "merged.speedscope.json").read_text()) == speedscope_file(
        "p1", SETS, "vllm-obs@0.1"
    )
    assert (tmp_path / "merged.collapsed.txt").read_text() == collapsed_text(SETS)
    assert (tmp_path / "merged.ran.collapsed.txt").read_text() == ran_text(SETS)
    assert (tmp_path / "processes.collapsed.txt").read_text() == collapsed_text(SETS, by_role=False)
    assert read_table(tmp_path) == table
    assert {path.name for path in tmp_path.iterdir()} == {
        *MERGED,
        *(f"{samples.role}.samples.json" for samples in SETS),
    }
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in MERGED)


def test_merging_again_gives_the_same(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert merge(tmp_path, NOTE) == merge(tmp_path, NOTE)


def test_a_file_that_cannot_be_used_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_all(tmp_path)
    (tmp_path / "EngineCore_DP0.samples.json").write_text("{")
    assert merge(tmp_path, NOTE)["roles"] == sample_table(SETS)
    assert "EngineCore_DP0.samples.json holds no samples" in caplog.text


def test_of_nothing_there_is_an_empty_table(tmp_path: Path) -> None:
    assert merge(tmp_path, NOTE)["roles"] == []
    table = read_table(tmp_path)
    assert table is not None
    assert table["roles"] == []


def test_the_number_of_processes_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_merge, "MAX_PROCESSES", 2)
    write_all(tmp_path)
    assert [role["role"] for role in merge(tmp_path, NOTE)["roles"]] == ["Observer", "Worker"]
    assert len(sample_merge.read_all(tmp_path)) == 2


def test_what_is_no_table_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_table(tmp_path) is None
    for text in ("[]", "{}", '{"roles": 3}', "[", ""):
        (tmp_path / "samples.table.json").write_text(text)
        assert read_table(tmp_path) is None
    (tmp_path / "samples.table.json").write_text('{"roles": []}')
    assert read_table(tmp_path) == {"roles": []}
    monkeypatch.setattr(sample_merge, "MAX_TABLE_BYTES", 1)
    assert read_table(tmp_path) is None
