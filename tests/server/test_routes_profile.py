"""/start_profile and /stop_profile: there only where they are opened, behind the key, in the one error shape."""

from pathlib import Path

import pytest
from fake_engine import FakeEngine
from http_app import served
from in_loop import in_loop

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.profile_config import ProfilerConfig

OPEN = ProfilerConfig(True)


@in_loop
async def test_a_profile_is_begun_and_ended(tmp_path: Path) -> None:
    engine = FakeEngine(lambda request: [1])
    async with served(engine, ServerConfig(profiler_config=OPEN), run_dir=tmp_path) as server:
        engine.utility_answers["is_profiling"] = True
        begun = await server.client.post("/start_profile")
        assert begun.status_code == 200
        assert Path(begun.json()["directory"]).is_dir()
        again = await server.client.post("/start_profile")
        assert (again.status_code, again.json()["error"]["type"]) == (409, "ConflictError")
        assert again.json()["error"]["reason"] == "conflict"
        engine.utility_answers["is_profiling"] = False
        ended = await server.client.post("/stop_profile")
        assert (ended.status_code, ended.json()) == (200, {"state": "written"})
        assert (await server.client.post("/stop_profile")).status_code == 409
    methods = {method for method, _ in engine.utility_calls}
    assert methods == {"start_profile", "is_profiling", "stop_profile"}


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
@in_loop
async def test_closed_they_are_not_there(path: str, tmp_path: Path) -> None:
    async with served(FakeEngine(lambda request: [1]), run_dir=tmp_path) as server:
        for method in ("GET", "POST"):
            reply = await server.client.request(method, path)
            assert (reply.status_code, reply.json()["error"]["reason"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
@in_loop
async def test_with_keys_set_they_need_one(path: str, tmp_path: Path) -> None:
    config = ServerConfig(api_keys=("k",), profiler_config=OPEN)
    async with served(FakeEngine(lambda request: [1]), config, run_dir=tmp_path) as server:
        assert (await server.client.post(path)).status_code == 401
        with_key = await server.client.post(path, headers={"authorization": "Bearer k"})
        assert with_key.status_code in (200, 409)
        await server.api.profiles.close()


@in_loop
async def test_get_changes_nothing(tmp_path: Path) -> None:
    engine = FakeEngine(lambda request: [1])
    async with served(engine, ServerConfig(profiler_config=OPEN), run_dir=tmp_path) as server:
        assert (await server.client.get("/start_profile")).status_code == 405
    assert engine.utility_calls == []


@in_loop
async def test_while_the_model_loads_it_is_503(tmp_path: Path) -> None:
    engine = FakeEngine(lambda request: [1])
    async with served(engine, ServerConfig(profiler_config=OPEN), ready=False, run_dir=tmp_path) as server:
        assert (await server.client.post("/start_profile")).status_code == 503
