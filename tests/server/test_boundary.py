"""What a request that fails leaves behind in the server: nothing, not even until garbage is collected."""

import asyncio
import gc
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.server.errors import ApiError


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "Hi", "temperature": 9}, 400),
        ("/v1/completions", {"prompt": ["x"] * 10_000}, 400),
        ("/nothing", {}, 404),
    ],
)
def test_a_refused_request_is_freed_at_once(path: str, body: Any, status: int) -> None:
    async def scenario() -> list[object]:
        async with served(FakeEngine(lambda request: [])) as app:
            assert (await app.post(path, body)).status_code == status
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                assert (await app.post(path, body)).status_code == status
                await asyncio.sleep(0)
                gc.collect()
                return [kept for kept in gc.garbage if isinstance(kept, ApiError)]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert asyncio.run(scenario()) == []
