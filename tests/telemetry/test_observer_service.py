"""The service checkpoints as often as that is cheap, always after a scrape, and goes on from what was saved."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.inspect_state import telemetry_view
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_process import CHECKPOINT_NAME, open_service
from vllm_obs.telemetry.observer_service import SAVE_BYTES, SAVE_PAUSE, SAVE_SECONDS, ObserverService
from vllm_obs.telemetry.records import StallBegun

Opened = Callable[[], ObserverService]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Makes services that have drained everything."""
    services: list[ObserverService] = []

    def make() -> ObserverService:
        services.append(open_service(ObserverConfig(tmp_path)))
        while not services[-1].observer.drain_slice():
            pass
        return services[-1]

    yield make
    for service in services:
        service.observer.close()


def test_a_scrape_is_followed_by_a_checkpoint(run: ScriptedRun, opened: Opened, tmp_path: Path) -> None:
    service = opened()
    assert not (tmp_path / CHECKPOINT_NAME).exists()
    service.context.render_metrics("")
    assert (tmp_path / CHECKPOINT_NAME).exists()


def test_a_checkpoint_that_cannot_be_saved_is_seen(run: ScriptedRun, opened: Opened, tmp_path: Path) -> None:
    service = opened()
    (tmp_path / CHECKPOINT_NAME).mkdir()
    for _ in range(2):
        service.context.render_metrics("")
    body, _ = service.context.render_metrics("")
    assert b"vllm_obs_checkpoint_failures_total 2.0\n" in body
    assert telemetry_view(service.context)["num_failed_saves"] == 3


def test_a_slow_checkpoint_is_made_less_often(run: ScriptedRun, opened: Opened, tmp_path: Path) -> None:
    service = opened()
    saves: list[int] = []

    def slow() -> None:
        saves.append(1)
        time.sleep(0.02)

    service.save = slow
    for _ in range(5):
        service._upkeep(0)
    assert len(saves) == 1
    service.context.render_metrics("")
    assert len(saves) == 2
    service._save_due_at -= int(SAVE_SECONDS * 1e9)
    service._upkeep(0)
    assert len(saves) == 2
    service._save_not_before -= int(SAVE_PAUSE * 1e9)
    service._upkeep(0)
    assert len(saves) == 3


def test_a_checkpoint_of_upkeep_is_made_every_few_seconds_or_when_much_was_read(
    run: ScriptedRun, opened: Opened, tmp_path: Path
) -> None:
    service = opened()
    saves: list[int] = []
    service.save = lambda: saves.append(1)
    for _ in range(3):
        service._upkeep(0)
    assert len(saves) == 1
    service._save_due_at -= int(SAVE_SECONDS * 1e9)
    service._upkeep(0)
    assert len(saves) == 2
    time.sleep(0.01)
    service.num_unsaved_bytes = lambda: SAVE_BYTES
    service._upkeep(0)
    assert len(saves) == 3


def test_bytes_read_since_the_last_checkpoint_are_counted(
    run: ScriptedRun, opened: Opened, tmp_path: Path
) -> None:
    service = opened()
    assert service.num_unsaved_bytes() > 0
    service.save()
    assert service.num_unsaved_bytes() == 0
    run.serve("another")
    while not service.observer.drain_slice():
        pass
    assert service.num_unsaved_bytes() > 0


def test_bytes_of_a_checkpoint_that_was_not_saved_stay_unsaved(
    run: ScriptedRun, opened: Opened, tmp_path: Path
) -> None:
    service = opened()
    num_unsaved = service.num_unsaved_bytes()
    (tmp_path / CHECKPOINT_NAME).mkdir()
    service.save()
    assert service.num_unsaved_bytes() == num_unsaved > 0
    (tmp_path / CHECKPOINT_NAME).rmdir()
    service.save()
    assert service.num_unsaved_bytes() == 0


def test_a_second_service_goes_on_where_the_first_was(run: ScriptedRun, opened: Opened, tmp_path: Path) -> None:
    run.serve("before")
    run.submit("open")
    run.step("open")
    first = opened()
    first.save()
    run.step("open")
    run.finish("open")
    second = opened()
    assert second.observer.cost.resumed_from > 0
    assert [ledger.request_id for ledger in second.observer.state.ended] == ["open-0-0"]
    ledger = second.observer.state.ended.get("open-0-0")
    assert ledger is not None
    assert (ledger.num_steps, sum(ledger.stage_ns().values())) == (2, ledger.latency_ns)
    assert second.observer.state.invariants.num_broken == 0
    assert second.observer.cost.cpu_seconds_before > 0


def test_a_stall_that_lasts_is_known_to_the_next_service(run: ScriptedRun, opened: Opened, tmp_path: Path) -> None:
    run.serve("a")
    stall = StallBegun("0", "EngineCore_DP0", 7, -1, "executing", 3, "T", "It stands still.", 1, 11)
    ring = FlightRecorder(tmp_path / "Observer.ring", "Observer", 65536)
    ring.record(stall)
    first = opened()
    first.save()
    for service in (first, opened()):
        assert service.context.stall_log.lasting() == [stall]
        assert b'vllm_obs_stalls_total{engine="0",role="engine_core"} 1.0' in service.views.render("")[0]
    ring.close()


@pytest.mark.parametrize("part", ["run", "metrics", "cost"])
def test_where_a_part_cannot_be_restored_the_rings_are_read_again(
    run: ScriptedRun, opened: Opened, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    run.serve("before")
    first = opened()
    parts = {"run": first.observer.state, "metrics": first.views.metrics, "cost": first.observer.cost}
    monkeypatch.setattr(type(parts[part]), "state", lambda self: "spoilt")
    first.save()
    monkeypatch.undo()
    run.serve("after")
    second = opened()
    body = second.views.render("")[0].decode()
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 6.0' in body
    assert [ledger.request_id for ledger in second.observer.state.ended] == ["before-0-0", "after-0-0"]
    assert second.observer.state.invariants.num_broken == 0
