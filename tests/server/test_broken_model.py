"""A model that gives numbers to nobody: alive, not ready, no request let in, and ready again once it is mended."""

import asyncio

from fake_engine import FakeEngine
from http_app import Served, served
from step_outputs import Row, step_outputs

from vllm_obs.engine.messages import FinishReason

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
