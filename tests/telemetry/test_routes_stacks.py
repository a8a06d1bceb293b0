"""Stacks are taken over the inspector: by a POST that is said to be JSON, of this run's live processes only."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry import routes_stacks
from vllm_obs.telemetry.inspect_app import build_inspect_app
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_process import open_service
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.replay import open_replay

S = 10**9


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObserverChild]:
    run_dir = tmp_path_factory.mktemp("run")
    with ScriptedRun(run_dir) as run, observer_over(run_dir) as observer:
        run.start()
        yield observer


def test_one_process_shows_its_threads(observer: ObserverChild) -> None:
    pid = observer.child.pid
    reply = observer.ask(f"/inspect/processes/{pid}/stacks", "POST", body={})
    assert reply.status == 200
    (row,) = reply.json["processes"]
    assert (row["title"], row["pid"], row["how"], row["says"]) == ("Observer", pid, "in-process", "")
    assert {"thread", "name", "frames"} == set(row["threads"][0])
    assert any("observer_main.py" in frame for thread in row["threads"] for frame in thread["frames"])
    assert "observer_main.py" in row["text"]


def test_all_processes_are_listed_also_those_that_give_none(observer: ObserverChild) -> None:
    rows = {row["title"]: row for row in observer.ask("/inspect/stacks", "POST", body={}).json["processes"]}
    assert set(rows) == {"APIServer_0", "EngineCore_DP0", "Observer"}
    # The rings of the script are this test's own, which has registered nothing.
    assert "it has not registered for it" in rows["EngineCore_DP0"]["says"]


@pytest.mark.parametrize(("pid", "status"), [("1", 404), ("0", 422), ("x", 422)])
def test_other_processes_are_none_of_its_business(observer: ObserverChild, pid: str, status: int) -> None:
    assert observer.ask(f"/inspect/processes/{pid}/stacks", "POST", body={}).status == status


def test_get_takes_none_and_a_form_neither(observer: ObserverChild) -> None:
    assert observer.ask("/inspect/stacks").status == 405
    assert observer.ask("/inspect/stacks", "POST", {"content-type": "text/plain"}).status == 415
    assert observer.ask("/inspect/stacks", "POST", {"origin": "http://evil.example"}, {}).status == 403


def test_who_waits_for_stacks_while_the_inspector_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_end = threading.Event(), threading.Event()

    def never(run_dir: Path, pids: object) -> list[object]:
        is_asked.set()
        may_end.wait(30)
        return []

    monkeypatch.setattr(routes_stacks, "stacks_of", never)
    service = open_service(ObserverConfig(tmp_path))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_inspect_app(service.context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asking = asyncio.create_task(client.post("/inspect/stacks", json={}))
            await asyncio.to_thread(is_asked.wait, 30)
            asking.cancel()
            try:
                return await asking
            finally:
                may_end.set()
                await service.close()

    reply = asyncio.run(ask())
    message = "the inspector ends; the stacks have not come"
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, message)


def test_a_recording_has_none(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path) as run:
        run.start()
        run.serve("a")
    save_recording(tmp_path, tmp_path / "saved.rec", 600 * S)
    service = open_replay(tmp_path / "saved.rec", "127.0.0.1", 0)
    service.observer.close()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_inspect_app(service.context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/inspect/stacks", json={})

    reply = asyncio.run(ask())
    message = "this is a recording: its processes have ended"
    assert (reply.status_code, reply.json()["error"]["message"]) == (409, message)
