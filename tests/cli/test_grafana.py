"""`vllm-obs grafana export DIR` writes everything, and nothing over what somebody has changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_obs.cli.main import main
from vllm_obs.grafana.export import exported_files

BOARD = "dashboards/vllm-obs-engine.json"


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_it_writes_all_files_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "made" / "here"
    assert main(["grafana", "export", str(target)]) == 0
    assert contents(target) == exported_files()
    out = capsys.readouterr().out
    assert f"{target}: {len(exported_files())} files, 6 of them boards." in out
    assert f"--config.file={target}/prometheus.yml" in out
    assert f"VLLM_OBS_BOARDS={target}/dashboards" in out


def test_again_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["grafana", "export", str(tmp_path)]) == 0
    assert contents(tmp_path) == exported_files()


def test_what_was_changed_is_kept_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "rules" / "burn.yml"
    changed.parent.mkdir()
    changed.write_text("mine\n")
    assert main(["grafana", "export", str(tmp_path)]) == 1
    assert contents(tmp_path) == {"rules/burn.yml": "mine\n"}
    assert capsys.readouterr().err == (
        f"vllm-obs: {tmp_path} has other files than would be written: rules/burn.yml; --force overwrites them\n"
    )
    assert main(["grafana", "export", str(tmp_path), "--force"]) == 0
    assert contents(tmp_path) == exported_files()


def test_many_changed_files_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in exported_files():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert main(["grafana", "export", str(tmp_path)]) == 1
    assert f" and {len(exported_files()) - 5} more; " in capsys.readouterr().err


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["grafana", "export", str(tmp_path)]) == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_addresses_that_are_given_are_in_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--datasource", "mine", "--inspector_url=https://see.example:1"]
    assert main(["grafana", "export", str(tmp_path), *flags]) == 0
    variables = json.loads((tmp_path / BOARD).read_text())["templating"]["list"]
    current = {each["name"]: each["current"]["value"] for each in variables}
    assert (current["datasource"], current["inspector"]) == ("mine", "https://see.example:1")
    assert not (tmp_path / "provisioning" / "datasources").exists()
    assert "data source mine; none is provisioned" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["export"],
        ["import", "."],
        ["export", ".", "more"],
        ["export", ".", "--inspector-url", "nowhere"],
        ["export", ".", "--trace-url", "http://x/y"],
        ["export", ".", "--datasource", "a/b"],
    ],
)
def test_a_bad_order_is_one_line_and_exit_78(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grafana", *argv]) == 78
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(tmp_path) == {}


def test_a_place_that_cannot_be_written_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["grafana", "export", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"vllm-obs: {tmp_path}/file/alerts: Not a directory\n"


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    script = f"import sys; from vllm_obs.cli.main import main; main(['grafana', 'export', {str(tmp_path)!r}])"
    script += "; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "streamlit", "fastapi", "opentelemetry", "prometheus_client", "yaml", "numpy"}
