"""A recording holds the whole requests of its span, and a replay of it answers as the live run would have."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fact_stream import FactStream
from scripted_run import MODEL, ScriptedRun

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.inspect_blocks import block_list
from vllm_obs.telemetry.inspect_requests import one_request
from vllm_obs.telemetry.inspect_state import run_view
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recording import SavedRecording, save_recording
from vllm_obs.telemetry.recording_file import RecordingError
from vllm_obs.telemetry.recording_tail import RecordingTail
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.ring_tail import RingTail

S = 1_000_000_000


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "20261129-120000-7"
    path.mkdir()
    return path


@pytest.fixture
def run(run_dir: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(run_dir) as run:
        run.start()
        yield run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved.rec"


def replayed(path: Path) -> ObserverService:
    """The service over a recording, with its file closed again."""
    service = open_replay(path, "127.0.0.1", 0)
    service.observer.close()
    return service


def ended_ids(service: ObserverService) -> list[str]:
    return [ledger.request_id for ledger in service.observer.state.ended]


def test_a_replay_answers_as_the_run_did(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    for number in range(3):
        run.serve(f"r{number}", label="label")
    run.submit("open")
    run.step("open")
    live = Observer("run", run_dir, clock=lambda: run.now)
    live.tail = RingTail(run_dir)
    while not live.drain_slice():
        pass
    live.close()
    found = save_recording(run_dir, saved, 3600 * S)
    assert found == SavedRecording(live.cost.num_facts, saved.stat().st_size, 0, found.seconds)
    replay = replayed(saved)
    state, now = replay.observer.state, run.now
    for name in ("r0", "r2-0-0", "open", "label"):
        assert one_request(state, now, name) == one_request(live.state, now, name)
    assert state.invariants.num_broken == 0
    view = run_view(replay.context)
    assert (view["run"], view["health"]["word"], view["models"]) == (run_dir.name, "recording", [MODEL])
    assert (
        f'vllm:generation_tokens_total{{engine="0",model_name="{MODEL}"}} 10.0'
        in replay.views.render("")[0].decode()
    )


def test_time_stands_still_at_the_last_record(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    run.submit("open")
    save_recording(run_dir, saved, S)
    observer = replayed(saved).observer
    assert observer.now() == observer.now() == run.now


def test_only_the_span_is_saved_but_its_requests_are_whole(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    run.serve("long ago")
    run.pass_time(60_000)
    run.submit("reaches in")
    run.step("reaches in")
    run.pass_time(20_000)
    run.step("reaches in")
    run.finish("reaches in")
    run.serve("within")
    save_recording(run_dir, saved, 10 * S)
    service = replayed(saved)
    assert ended_ids(service) == ["reaches in-0-0", "within-0-0"]
    assert not any(ledger.is_partial for ledger in service.observer.state.ended)
    header = RecordingTail(saved)
    header.close()
    assert header.header.begins_at == run.now - 10 * S


def test_what_was_recorded_once_is_in_every_recording(run_dir: Path, saved: Path) -> None:
    with ScriptedRun(run_dir, engine_bytes=16_384) as run:
        run.start()
        observer = Observer("run", run_dir)
        observer.tail = RingTail(run_dir)
        while not observer.drain_slice():
            pass
        observer.facts.save(1, 1)
        observer.close()
        for number in range(60):
            run.serve(f"r{number}")
        found = save_recording(run_dir, saved, 3600 * S)
    assert found.num_lost > 0
    service = replayed(saved)
    described = service.observer.state.engines["0"].described
    assert described is not None
    assert described.model_names == [MODEL]
    assert service.observer.state.num_lost == {"EngineCore_DP0": found.num_lost}


def test_a_dead_run_is_saved_to_its_last_record(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    run.serve("a")
    run.close()
    save_recording(run_dir, saved, 60 * S)
    service = replayed(saved)
    assert ended_ids(service) == ["a-0-0"]
    assert service.observer.state.engines == {}
    assert [engine.label for engine in service.observer.state.past_engines] == ["0"]


def test_every_page_says_the_same_of_a_dead_run(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    for name in ("a", "b"):
        run.submit(name)
    run.step("a", "b")
    run.close()
    save_recording(run_dir, saved, 60 * S)
    service = replayed(saved)
    view = run_view(service.context)
    (engine,) = view["engines"]
    levels = {"num_active": 0, "num_cached": 0, "num_free": 0}
    assert (engine["num_running"], engine["num_waiting"], view["requests"]["num_live"]) == (0, 0, 0)
    assert {name: engine["blocks"][name] for name in levels} == levels
    assert block_list(service.observer.state, "0", None)["levels"] == levels
    metrics = service.views.render("")[0].decode()
    assert f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0' in metrics
    assert f'vllm_obs_kv_blocks{{engine="0",model_name="{MODEL}",state="active"}} 0.0' in metrics
    assert f'vllm_obs_kv_blocks{{engine="0",model_name="{MODEL}",state="cached"}} 0.0' in metrics


def test_a_cut_recording_is_replayed_as_far_as_it_goes(run: ScriptedRun, run_dir: Path, saved: Path) -> None:
    for number in range(10):
        run.serve(f"r{number}")
    save_recording(run_dir, saved, 60 * S)
    saved.write_bytes(saved.read_bytes()[: saved.stat().st_size // 2])
    assert 0 < len(ended_ids(replayed(saved))) < 10
    tail = RecordingTail(saved)
    assert sum(1 for _ in tail.drain(10_000)) > 10
    assert tail.num_bad_bytes > 0
    tail.close()


def test_a_directory_without_rings_is_named(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(RecordingError, match="holds no rings"):
        save_recording(tmp_path, saved, S)
    assert not saved.exists()


def test_a_recording_that_begins_in_the_middle_knows_the_blocks_from_its_first_step(
    run_dir: Path, saved: Path
) -> None:
    stream = FactStream(now=S)
    stream.describe()
    for number in range(4):
        stream.submit(f"old-{number}", num_prompt_tokens=10 + number)
        stream.step([f"old-{number}"])
        stream.finish(f"old-{number}")
    stream.submit("before", num_prompt_tokens=5)
    stream.step(["before"])
    stream.submit("reaches", num_prompt_tokens=9)
    stream.step(["before", "reaches"])
    stream.finish("before")
    stream.pass_time(60 * S)
    stream.step(["reaches"])
    stream.keyframes(0, 8)
    stream.step(["reaches"])
    stream.finish("reaches")
    write_rings(run_dir, stream)
    save_recording(run_dir, saved, 10 * S)
    state = replayed(saved).observer.state
    assert (state.invariants.num_broken, state.num_lost) == (0, {})
    assert [(ledger.request_id, ledger.is_partial) for ledger in state.ended] == [("reaches", False)]
    blocks = state.past_engines[0].blocks
    assert blocks.is_exact
    view = blocks.at(stream.num_steps)
    assert view is not None
    assert sum(view.state_of(block_id) == "cached" for block_id in range(64)) == stream.blocks.levels[1] > 10


def test_a_process_that_died_before_the_span_is_dead_in_the_recording(run_dir: Path, saved: Path) -> None:
    stream = FactStream(now=S)
    stream.describe()
    stream.pass_time(60 * S)
    stream.submit("late", is_taken=False)
    write_rings(run_dir, stream)
    save_recording(run_dir, saved, 10 * S)
    assert replayed(saved).observer.state.engines == {}


def write_rings(run_dir: Path, stream: FactStream) -> None:
    """What the stream's processes recorded, in their rings; both are dead."""
    for source in (stream.api, stream.engine):
        recorder = FlightRecorder(run_dir / f"{source.role}.ring", source.role, 1 << 20)
        for _, record in stream.of(source):
            recorder.record(record)
        recorder.close()
