"""Run directories: fresh, private, locked while the run lives, pruned when it is dead, and only ours."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_obs.engine import incident_archive
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.incident_archive import MAX_RUNS
from vllm_obs.engine.run_dir import NUM_DEAD_RUNS_KEPT, RunDirectory, base_directory, prune_dead_runs


def dead_run(base: Path, number: int) -> Path:
    """What a run of that day left behind: a lock nobody holds, a socket, a pipe and a file."""
    path = base / f"202601{number:02d}-000000-{number}"
    path.mkdir(mode=0o700)
    (path / "lock").touch()
    (path / "ring").write_text("facts")
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path / "in0.sock"))
    os.mkfifo(path / "EngineCore_DP0.ask")
    return path


def test_a_run_has_a_fresh_private_directory(run_base: Path) -> None:
    with RunDirectory.create() as first, RunDirectory.create() as second:
        assert first.path != second.path
        for run in (first, second):
            assert run.path.parent == run_base
            assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
            assert run.path.stat().st_uid == os.getuid()


def test_closing_removes_sockets_and_pipes_and_keeps_the_files(run_base: Path) -> None:
    run = RunDirectory.create()
    (run.path / "ring").write_text("facts")
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(run.path / "out0.sock"))
    os.mkfifo(run.path / "EngineCore_DP0.ask")
    run.close()
    run.close()
    assert sorted(path.name for path in run.path.iterdir()) == ["lock", "ring"]


def test_the_next_start_keeps_the_last_five_dead_runs_without_their_sockets_and_pipes(run_base: Path) -> None:
    dead = [dead_run(run_base, number) for number in range(1, 9)]
    with RunDirectory.create() as run:
        assert run.path.exists()
    assert [path.exists() for path in dead] == [False] * 3 + [True] * NUM_DEAD_RUNS_KEPT
    assert sorted(path.name for path in dead[-1].iterdir()) == ["lock", "ring"]


def with_incident(path: Path) -> Path:
    """The run, with an incident."""
    folder = path / "incidents" / f"{path.name[:15]}-killed-EngineCore_DP0"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text("{}")
    (folder / "recording").write_text("large")
    return path


def is_whole(path: Path) -> bool:
    return (path / "ring").exists()


def test_of_older_runs_only_their_incidents_stay(run_base: Path) -> None:
    dead = [dead_run(run_base, number) for number in range(1, 9)]
    with_incident(dead[1])
    (dead[0] / "incidents").mkdir()
    prune_dead_runs(run_base)
    prune_dead_runs(run_base)
    assert [path.exists() for path in dead] == [False, True, False, True, True, True, True, True]
    kept = sorted(str(path.relative_to(dead[1])) for path in dead[1].rglob("*") if path.is_file())
    assert kept == ["incidents/20260102-000000-killed-EngineCore_DP0/incident.json", "lock", "pruned"]
    assert stat.S_IMODE((dead[1] / "pruned").stat().st_mode) == 0o600


def test_the_first_cause_of_a_crash_loop_is_never_lost_and_whole_for_an_hour(run_base: Path) -> None:
    before = with_incident(dead_run(run_base, 1))
    for number in range(100):
        # One a minute.
        run = dead_run(run_base, 31)
        name = f"20260131-{number // 60:02d}{number % 60:02d}00-{number}"
        with_incident(run.rename(run_base / name))
        prune_dead_runs(run_base)
        first = run_base / "20260131-000000-0"
        assert (first / "incidents").is_dir()
        assert is_whole(first) == (number <= 60)
        runs = [path for path in run_base.iterdir() if path.is_dir()]
        assert sum(map(is_whole, runs)) <= NUM_DEAD_RUNS_KEPT
        assert len(runs) <= NUM_DEAD_RUNS_KEPT + MAX_RUNS
    assert (before / "incidents").is_dir()


def test_incidents_that_stay_have_so_many_bytes_at_most(run_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_archive, "MAX_BYTES", 200_000)
    dead = [with_incident(dead_run(run_base, number)) for number in range(1, 12)]
    for path in dead:
        (next((path / "incidents").iterdir()) / "steps.jsonl").write_bytes(b"x" * 60_000)
    prune_dead_runs(run_base)
    assert sum(path.exists() for path in dead) == NUM_DEAD_RUNS_KEPT + 3


def test_a_live_run_is_never_pruned(run_base: Path) -> None:
    with RunDirectory.create() as live:
        old = live.path.rename(run_base / "20200101-000000-1")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(old / "in0.sock"))
            for number in range(1, 9):
                dead_run(run_base, number)
            prune_dead_runs(run_base)
            assert (old / "in0.sock").exists()
            (old / "in0.sock").unlink()


def test_what_is_not_a_run_of_ours_is_left_alone(run_base: Path) -> None:
    (run_base / "notes").mkdir()
    target = dead_run(run_base, 1).rename(run_base / "elsewhere")
    (run_base / "20200101-000000-1").symlink_to(target)
    for number in range(2, 9):
        dead_run(run_base, number)
    prune_dead_runs(run_base)
    assert (run_base / "notes").is_dir()
    assert (run_base / "20200101-000000-1").is_symlink()
    assert (target / "ring").exists()


def test_a_killed_run_counts_as_dead(run_base: Path) -> None:
    script = (
        "import time; from vllm_obs.engine.run_dir import RunDirectory;"
        "run = RunDirectory.create(); print(run.path, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        for number in range(1, 9):
            dead_run(run_base, number)
        time.sleep(0.01)
        path.rename(run_base / "20200101-000000-1")
        prune_dead_runs(run_base)
        assert (run_base / "20200101-000000-1").exists()
        process.kill()
    prune_dead_runs(run_base)
    assert not (run_base / "20200101-000000-1").exists()


def test_eight_starts_at_once_get_eight_directories(run_base: Path) -> None:
    script = "from vllm_obs.engine.run_dir import RunDirectory; print(RunDirectory.create().path)"
    starts = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    paths = [start.communicate(timeout=60)[0] for start in starts]
    assert [start.returncode for start in starts] == [0] * 8
    assert len(set(paths)) == 8


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_place_that_others_can_write_is_refused(run_base: Path, mode: int) -> None:
    run_base.chmod(mode)
    with pytest.raises(ConfigError, match="can be written by other users"):
        RunDirectory.create()


def test_a_link_in_the_place_of_the_directory_is_refused(run_base: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(run_base)
    with pytest.raises(ConfigError, match="not a directory of this user"):
        RunDirectory.create(link)


def test_a_place_that_cannot_be_made_is_named(run_base: Path) -> None:
    (run_base / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the directory"):
        RunDirectory.create(run_base / "file" / "runs")


def test_the_place_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", "/somewhere")
    assert base_directory() == Path("/somewhere")
    monkeypatch.delenv("VLLM_OBS_RUN_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert base_directory() == Path("/run/user/1/vllm-obs")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert base_directory() == Path(f"/tmp/vllm-obs-{os.getuid()}")


OTHER_UID = 65_534


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused_and_their_runs_are_left_alone(run_base: Path) -> None:
    """As where somebody made /tmp/vllm-obs-UID before us."""
    theirs = dead_run(run_base, 1)
    os.chown(theirs, OTHER_UID, OTHER_UID)
    for number in range(2, 9):
        dead_run(run_base, number)
    prune_dead_runs(run_base)
    assert sorted(path.name for path in theirs.iterdir()) == ["EngineCore_DP0.ask", "in0.sock", "lock", "ring"]
    before = set(run_base.iterdir())
    os.chown(run_base, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match="is not a directory of this user; set VLLM_OBS_RUN_DIR"):
        RunDirectory.create()
    assert set(run_base.iterdir()) == before


def test_links_inside_a_dead_run_are_removed_and_not_followed(run_base: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    for number in range(1, 9):
        path = dead_run(run_base, number)
        (path / "link").symlink_to(tmp_path)
        (path / "link.sock").symlink_to(tmp_path / "precious")
    prune_dead_runs(run_base)
    assert (tmp_path / "precious").read_text() == "data"
    assert len([path for path in run_base.iterdir() if path.is_dir()]) == NUM_DEAD_RUNS_KEPT


@pytest.mark.parametrize("name", ["lock", ".lock"])
def test_a_link_in_the_place_of_a_lock_is_refused(run_base: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("data")
    if name == ".lock":
        (run_base / ".lock").symlink_to(tmp_path / "precious")
        with pytest.raises(ConfigError, match="cannot open the lock"):
            RunDirectory.create()
    else:
        runs = [dead_run(run_base, number) for number in range(1, 9)]
        (runs[0] / "lock").unlink()
        (runs[0] / "lock").symlink_to(tmp_path / "precious")
        prune_dead_runs(run_base)
        assert runs[0].exists()  # nobody can say whether it lives
    assert (tmp_path / "precious").read_text() == "data"
