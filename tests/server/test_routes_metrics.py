"""/metrics: the Observer's answer as it is, or a 503 in the one shape."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from fake_observer import Handler, UnixHttpServer
from http_app import served

from vllm_obs.server import observer_client
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.observer_client import Answer, ObserverClient, ObserverUnavailableError
from vllm_obs.server.routes_metrics import MAX_ACCEPT_CHARS


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A run directory with an Observer's socket in it."""
    with tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp") as directory:
        server = UnixHttpServer(f"{directory}/observer.sock", Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Path(directory)
        server.shutdown()
        thread.join(5)
        server.server_close()


def ask(run_dir: Path | str, target: str = "/metrics") -> Answer:
    return asyncio.run(ObserverClient(str(run_dir)).get(target, b"text/plain;version=1"))


def test_the_answer_is_passed_on_with_the_question(run_dir: Path) -> None:
    assert ask(run_dir) == Answer("text/plain; version=0.0.4; charset=utf-8", b"# /metrics text/plain;version=1\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/broken", "the Observer answered with status 500"),
        ("/hang-up", "the Observer's answer is broken"),
        ("/slow", "the Observer did not answer within 0.2 s"),
    ],
)
def test_a_bad_answer_is_none(run_dir: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str) -> None:
    monkeypatch.setattr(observer_client, "DEADLINE_SECONDS", 0.2)
    with pytest.raises(ObserverUnavailableError, match=message):
        ask(run_dir, target)


def test_nobody_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ObserverUnavailableError, match="the Observer is not there"):
        ask(tmp_path)
    with pytest.raises(ObserverUnavailableError, match="telemetry is switched off"):
        ask("")


def test_questions_do_not_pile_up(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_client, "MAX_QUESTIONS", 2)
    monkeypatch.setattr(observer_client, "DEADLINE_SECONDS", 0.3)

    async def scenario() -> list[str]:
        client = ObserverClient(str(run_dir))
        replies = await asyncio.gather(*(client.get("/slow", b"*/*") for _ in range(3)), return_exceptions=True)
        assert (await client.get("/metrics", b"*/*")).body == b"# /metrics */*\n"
        return sorted(str(reply) for reply in replies)

    first, *rest = asyncio.run(scenario())
    assert first == "2 questions wait for the Observer already"
    assert len(rest) == 2


def test_the_route_needs_no_key_and_answers_while_loading(run_dir: Path) -> None:
    async def scenario() -> None:
        server = ServerConfig(api_keys=("secret",))
        async with served(FakeEngine(lambda request: []), server, ready=False, run_dir=run_dir) as app:
            reply = await app.client.get("/metrics", headers={"accept": "application/openmetrics-text"})
            assert (reply.status_code, reply.text) == (200, "# /metrics application/openmetrics-text\n")
            assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            cut_at_a_blank = "a" * (MAX_ACCEPT_CHARS - 1) + " b"
            assert (await app.client.get("/metrics", headers={"accept": cut_at_a_blank})).status_code == 200

    asyncio.run(scenario())


def test_without_an_observer_it_is_503_in_the_one_shape(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: []), run_dir=tmp_path) as app:
            reply = await app.client.get("/metrics")
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
            assert reply.json()["error"] == {
                "message": "the Observer is not there",
                "type": "ServiceUnavailableError",
                "param": None,
                "code": 503,
                "reason": "not_ready",
            }

    asyncio.run(scenario())
