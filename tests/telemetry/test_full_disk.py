"""An Observer that starts on a full disk observes, says so in a line, and writes down what it owes when it can."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observed_server import await_that
from observer_child import observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.observer_address import INSPECT_FILE, write_address

SIZE = "8m"
MARGIN_BYTES = 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of SIZE; skipped where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leaves no room on a disk; the file that takes it."""
    path = place / "filling"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MARGIN_BYTES))
        except OSError:
            return path


def test_it_lives_on_without_its_files_and_writes_them_when_there_is_room(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = small_disk / "20260101-000000-7"
    run_dir.mkdir()
    said: list[str] = []

    def has_said(words: str) -> bool:
        said.append(capfd.readouterr().err)
        return words in "".join(said)

    with ScriptedRun(run_dir) as run:
        run.start()
        run.submit("a")
        run.core.doing(Activity.EXECUTING)
        filling = fill(small_disk)
        with observer_over(run_dir, stall_timeout=1.0) as observer:
            await_that(lambda: has_said("it is kept in memory until that is possible"), 20)
            await_that(lambda: has_said("was not saved: No space left on device"), 20)
            assert observer.get("/inspect/version")["run"] == run_dir.name
            assert sorted(path.name for path in run_dir.glob("in*")) == ["incidents"]
            filling.unlink()
            await_that((run_dir / INSPECT_FILE).exists, 20)
            await_that(lambda: any(run_dir.glob("incidents/*-stalled-*/incident.json")), 20)
            await_that((run_dir / "observer.checkpoint").exists, 20)
        assert observer.child.exit_code == 0
    words = "".join(said)
    assert "Traceback" not in words
    assert words.count("the inspector's address cannot be written down yet: No space left on device") == 1


def test_an_address_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / INSPECT_FILE).mkdir()
    with pytest.raises(OSError, match="directory"):
        write_address(tmp_path, "http://127.0.0.1:1", "")
    assert [path.name for path in tmp_path.iterdir()] == [INSPECT_FILE]
