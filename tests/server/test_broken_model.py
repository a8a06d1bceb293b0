"""A model that gives numbers to nobody: alive, not ready, no request let in, and ready again once it is mended."""

import asyncio
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from http_app import Served, served
from step_outputs import Row, step_outputs

from vllm_obs.engine.messages import FinishReason
from vllm_obs.server.progress_watch import ProgressWatch
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.ring_reader import RingReader

BROKEN = step_outputs(Row("bad", [], FinishReason.ERROR, error=("invalid_logits", "not finite")))
GOOD = step_outputs(Row("good", [30]))


async def probes(app: Served) -> list[tuple[int, str]]:
    """Status and word of readiness, liveness and a request."""
    ready, live = await app.client.get("/readyz"), await app.client.get("/livez")
    reply = await app.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1})
    words = [
        each.json()["error"]["reason"] if each.status_code >= 400 else each.json().get("status", "")
        for each in (ready, live, reply)
    ]
    return list(zip((ready.status_code, live.status_code, reply.status_code), words, strict=True))


def test_a_broken_model_is_not_ready_until_somebody_gets_a_token() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [30])) as app:
            for _ in range(3):
                app.llm.answers.saw(BROKEN)
            assert await probes(app) == [(503, "not_ready"), (200, "broken"), (503, "not_ready")]
            app.llm.answers.saw(GOOD)
            assert await probes(app) == [(200, "ready"), (200, "ready"), (200, "")]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_ending", [False, True])
def test_the_ring_says_so_too_unless_the_server_has_said_more(tmp_path: Path, is_ending: bool) -> None:
    """The probes on the inspector's port know the server by its ring alone."""

    async def scenario(recorder: FlightRecorder) -> list[Activity]:
        async with served(FakeEngine(lambda request: [30]), run_dir=tmp_path) as app:
            app.api.recorder = recorder
            watch = ProgressWatch(app.api, lambda: None)
            seen: list[Activity] = []
            with RingReader(recorder.path) as reader:
                for outputs in (GOOD, BROKEN, GOOD):
                    for _ in range(3):
                        app.llm.answers.saw(outputs)
                    watch.look(0)
                    seen.append(reader.header().activity)
                    if is_ending and outputs is BROKEN:
                        app.api.drain()
                        recorder.doing(Activity.STOPPING)
            watch.stop()
            return seen

    recorder = FlightRecorder(tmp_path / "APIServer_0.ring", "APIServer_0", 1 << 16)
    recorder.doing(Activity.SERVING)
    try:
        seen = asyncio.run(scenario(recorder))
    finally:
        recorder.close()
    assert seen == [Activity.SERVING, Activity.BROKEN, Activity.STOPPING if is_ending else Activity.SERVING]
