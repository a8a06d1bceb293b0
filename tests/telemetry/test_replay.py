"""A file that is not whole is replayed as far as it goes, and says so everywhere."""

from pathlib import Path

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.economics_view import economics_view
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.replay import open_replay

HOUR_NS = 3600 * 10**9


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A recording of three requests."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with ScriptedRun(run_dir) as run:
        run.start()
        for number in range(3):
            run.serve(f"r{number}")
    save_recording(run_dir, tmp_path / "saved.rec", HOUR_NS)
    return tmp_path / "saved.rec"


def replayed(path: Path) -> ObserverService:
    service = open_replay(path, "127.0.0.1", 0)
    service.observer.close()
    return service


def test_a_whole_file_has_no_caveat(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = replayed(saved)
    assert (service.observer.caveat, service.config.facts["defect"], caplog.records) == ("", "", [])


def test_a_recording_can_be_held_to_objectives_and_is_charged(saved: Path) -> None:
    service = open_replay(saved, "127.0.0.1", 0, "e2e=0.001")
    service.observer.close()
    assert (service.views.slo.num_attained, dict(service.views.slo.num_missed)) == (0, {"e2e": 3})
    check = economics_view(service.views.economics, service.observer.now(), "run")["check"]
    assert check["step_time"]["ratio"] == check["blocks"]["ratio"] == 1.0


@pytest.mark.parametrize("num_cut", [1, 12, 300])
def test_a_cut_file_is_said_to_be_cut(saved: Path, num_cut: int, caplog: pytest.LogCaptureFixture) -> None:
    saved.write_bytes(saved.read_bytes()[:-num_cut])
    service = replayed(saved)
    caveat = service.observer.caveat
    assert caveat.startswith("the file is cut: its end is missing (")
    assert service.config.shown()["defect"] == caveat
    assert [record.message for record in caplog.records] == [f"{saved}: {caveat}"]
    assert [ledger.request_id for ledger in service.observer.state.ended][:2] == ["r0-0-0", "r1-0-0"]


def test_a_changed_byte_is_said_to_be_there(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-200] ^= 1
    saved.write_bytes(content)
    assert "cannot be read" in replayed(saved).observer.caveat
