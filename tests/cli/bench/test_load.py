"""The load generator against a small server of its own kind."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_completions_server import FakeServer

from vllm_obs.cli.bench.client import BenchClient, ServerUnreachableError
from vllm_obs.cli.bench.command import main, measure, read_options
from vllm_obs.cli.bench.load import LoadGenerator, Outcome
from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.cli.bench.report import Report
from vllm_obs.engine.errors import ConfigError

SMALL = {"random_input_len": 12, "random_output_len": 4, "disable_tqdm": True}


def run(server: FakeServer, **kwargs: object) -> Report:
    async def scenario() -> Report:
        async with server.listening():
            return await measure(BenchOptions(port=server.port, **{**SMALL, **kwargs}))

    return asyncio.run(scenario())


def test_a_closed_loop_sends_every_prompt_on_kept_connections() -> None:
    server = FakeServer(delay_seconds=0.002)
    report = run(server, num_prompts=10, max_concurrency=3, ignore_eos=True)
    assert report.model == "fake/model"
    assert [outcome.error for outcome in report.outcomes] == [""] * 10
    assert {outcome.num_prompt_tokens for outcome in report.outcomes} == {12}
    assert {len(outcome.token_moments) for outcome in report.outcomes} == {4}
    assert server.peak == 3
    assert server.num_connections == 3
    body = server.bodies[0]
    assert len(body.pop("prompt")) == 12
    assert body == {
        "model": "fake/model",
        "max_tokens": 4,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_all_at_once_without_a_limit() -> None:
    server = FakeServer(delay_seconds=0.02)
    run(server, num_prompts=6)
    assert server.peak == 6


def test_an_open_loop_sends_at_its_moments_and_counts_from_them() -> None:
    """One slot and a slow server: later requests wait for the slot, and that wait is theirs."""
    server = FakeServer(delay_seconds=0.02)
    report = run(server, num_prompts=5, request_rate=1000.0, max_concurrency=1)
    outcomes = sorted(report.outcomes, key=lambda outcome: outcome.due_at)
    assert server.peak == 1
    assert outcomes[-1].due_at < outcomes[0].ended_at
    assert outcomes[-1].sent_at >= outcomes[-2].ended_at
    assert report.latencies.ttft[-1] >= 4 * 4 * 20


def test_a_duration_ends_the_sending() -> None:
    server = FakeServer(delay_seconds=0.001)
    for limits in ({"max_concurrency": 2}, {"request_rate": 50.0}):
        outcomes = run(server, duration=0.3, **limits).outcomes
        begun_at = min(outcome.due_at for outcome in outcomes)
        assert 0 < max(outcome.due_at for outcome in outcomes) - begun_at <= 300_000_000
        assert {outcome.error for outcome in outcomes} == {""}


def test_warm_ups_are_sent_and_not_counted() -> None:
    server = FakeServer()
    report = run(server, num_prompts=3, num_warmups=2, max_concurrency=1)
    assert len(report.outcomes) == 3
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 5


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (FakeServer(fail_with=429), "HTTP 429: no such luck"),
        (FakeServer(cut_after=2), "the server closed the connection"),
        (FakeServer(delay_seconds=5.0), "no whole reply within 0.2 seconds"),
    ],
)
def test_failures_are_counted_with_their_cause(server: FakeServer, error: str) -> None:
    report = run(server, num_prompts=3, max_concurrency=1, request_timeout=0.2)
    assert report.throughput.num_completed == 0
    assert report.failures() == [(error, 3)]


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    server = FakeServer(closes_idle=True)
    report = run(server, num_prompts=4, max_concurrency=1)
    assert report.failures() == []
    assert server.num_connections >= 4


def test_headers_and_the_key_are_sent() -> None:
    async def scenario(server: FakeServer) -> None:
        async with server.listening():
            options = BenchOptions(base_url=f"http://127.0.0.1:{server.port}/", header=("X-Team=blue",))
            client = BenchClient(options, {"OPENAI_API_KEY": "k"})
            assert await client.first_model() == "fake/model"
            client.close()

    server = FakeServer()
    asyncio.run(scenario(server))
    assert "x-team: blue\r\n" in server.heads[0]
    assert "authorization: Bearer k\r\n" in server.heads[0]


def test_the_command_prints_saves_and_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(words: Callable[[int], list[str]]) -> int:
        async with FakeServer().listening() as server:
            return await asyncio.to_thread(main, ["serve", *words(server.port)])

    def words(port: int) -> list[str]:
        load = ["--port", str(port), "--num-prompts", "4", "--max-concurrency", "2", "--disable-tqdm"]
        requests = ["--random-input-len", "5", "--random-output-len", "3", "--goodput", "ttft:60000"]
        return [*load, *requests, "--save-result", "--result-dir", str(tmp_path), "--result-filename", "a.json"]

    assert asyncio.run(scenario(words)) == 0
    assert "Total input tokens:                      20        \n" in capsys.readouterr().out
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["completed"], document["total_output_tokens"]) == (4, 12)
    assert document["request_goodput"] == document["request_throughput"]


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "1"]) == 1
    assert capsys.readouterr().err.startswith("vllm-obs: no server at 127.0.0.1:1: ")


def test_waiting_for_a_server_has_an_end() -> None:
    client = BenchClient(BenchOptions(port=1))
    with pytest.raises(ServerUnreachableError):
        asyncio.run(client.wait_until_ready(0.3))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts 0 is not between 1 and"),
        (["--request-rate", "0"], "--request-rate 0.0 is not between"),
        (["--duration", "3"], "--duration needs --max-concurrency or --request-rate"),
        (["--endpoint", "/v1/chat/completions"], "--endpoint /v1/chat/completions"),
        (["--goodput", "speed:1"], "'speed' is not ttft, tpot or e2el"),
        (["--percentile-metrics", "ttft,x"], "'x' is not one of ttft"),
        (["--metric-percentiles", "101"], "101 is not between 0 and 100"),
        (["--random-token-ids", "9:3"], "--random-token-ids 9:3"),
        (["--num-prompt", "1"], "there is no flag --num-prompt (nearest: --num-prompts)"),
    ],
)
def test_bad_options(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(words)
    assert message in str(caught.value)


def test_outcomes_are_plain_facts() -> None:
    async def scenario() -> list[Outcome]:
        async with FakeServer().listening() as server:
            options = BenchOptions(port=server.port, num_prompts=1, **SMALL)
            client = BenchClient(options)
            done: list[int] = []
            outcomes = await LoadGenerator(options, client, "m", on_done=lambda: done.append(1)).run()
            client.close()
            assert done == [1]
            return outcomes

    (outcome,) = asyncio.run(scenario())
    assert outcome.due_at == outcome.sent_at <= outcome.token_moments[0] <= outcome.ended_at
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens, outcome.error) == (12, 4, "")
