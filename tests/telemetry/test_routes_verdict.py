"""`GET /inspect/verdict` says why it is slow, of each window, now and as it was, live and of a recording."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.routes_verdict import verdict_view

RING_BYTES = 1 << 22
NUM_STEPS = 1500
"""Of 10 ms each."""
S = 10**9


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "20261129-120000-7"


@pytest.fixture(scope="module")
def observer(run_dir: Path) -> Iterator[ObserverChild]:
    run_dir.mkdir()
    with ScriptedRun(run_dir, time.monotonic_ns() - 16 * S, RING_BYTES) as run:
        run.start()
        for name in ("a", "b", "w"):
            run.submit(name, max_tokens=9000)
        for _ in range(NUM_STEPS):
            run.step("a", "b", head_reason="max_num_seqs")
        with observer_over(run_dir) as observer:
            yield observer


def test_each_window_has_its_verdict(observer: ObserverChild) -> None:
    found = {window: observer.get(f"/inspect/verdict?window={window}") for window in ("1m", "5m")}
    assert {name: (document["window"], document["word"]) for name, document in found.items()} == {
        name: (name, "max_num_seqs") for name in found
    }
    assert found["1m"]["findings"][0]["evidence"]["max_num_seqs"] == 8.0
    assert found["1m"]["floor"]["num_steps"] > 0
    assert observer.get("/inspect/verdict")["window"] == "1m"


def test_it_can_be_asked_how_it_was(observer: ObserverChild) -> None:
    (begun_at,) = observer.get("/inspect/steps?since=0&limit=1")["steps"]["schedule_begun_at"]
    assert observer.get(f"/inspect/verdict?window=10s&at={begun_at + 12 * S}")["word"] == "max_num_seqs"
    assert observer.get(f"/inspect/verdict?window=10s&at={begun_at}")["word"] == "cannot_tell"


@pytest.mark.parametrize(("query", "status"), [("window=2h", 422), ("at=1", 404), (f"at={2**61}", 422)])
def test_what_is_not_kept_is_refused(observer: ObserverChild, query: str, status: int) -> None:
    reply = observer.ask(f"/inspect/verdict?{query}")
    assert (reply.status, reply.json["error"]["code"]) == (status, status)


def test_a_scrape_has_the_verdict(observer: ObserverChild) -> None:
    text = observer.ask("/metrics").body.decode()
    assert 'vllm_obs_verdict{finding="max_num_seqs"} 1.0' in text
    assert 'vllm_obs_verdict{finding="kv_pressure"} 0.0' in text
    assert 'vllm_obs_binding_limit_seconds_total{engine="0",limit="max_num_seqs",model_name="tiny"} 1' in text


def test_a_recording_is_judged_alike(observer: ObserverChild, run_dir: Path, tmp_path: Path) -> None:
    live = observer.get("/inspect/verdict?window=5m")
    path = tmp_path / "run.rec"
    save_recording(run_dir, path, 3600 * S)
    service = open_replay(path, "127.0.0.1", 0)
    service.observer.close()
    found = verdict_view(service.context, "5m")
    assert [found[name] for name in ("word", "severity", "cannot_tell")] == ["max_num_seqs", "severe", []]
    mean = "num_waiting_mean"
    assert found["findings"][0]["evidence"][mean] == live["findings"][0]["evidence"][mean] == 1.0
