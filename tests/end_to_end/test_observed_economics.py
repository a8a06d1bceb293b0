"""A real server with two keys and objectives: who spent what, who kept to them, and that it all adds up."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from observed_server import ObservedServer, await_that, synthetic, total

KEYS = {"key-1": "sk-first-canary", "batch": "sk-second-canary"}
SLO = "ttft=30,tpot=0.000001"
"""Nobody is so slow to begin, and nobody so quick to go on."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    directory = tmp_path_factory.mktemp("economics")
    (directory / "keys").write_text(f"batch\t{KEYS['batch']}\n")
    flags = ("--api-key", KEYS["key-1"], "--api-key-file", str(directory / "keys"), "--slo", SLO)
    with synthetic(*flags) as running:
        for number, (account, num_tokens) in enumerate((("key-1", 40), ("batch", 1), ("batch", 1))):
            assert ask(running, account, f"ask-{number}", num_tokens) == 200
        assert ask(running, "nobody", "refused", 1) == 401
        await_that(lambda: total(running.samples(), "vllm_obs_slo_attained_total") == 2)
        yield running


def ask(server: ObservedServer, account: str, label: str, num_tokens: int) -> int:
    """The status of a completion with an account's key."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", "X-Request-Id": label}
    headers["Authorization"] = f"Bearer {KEYS.get(account, 'sk-wrong')}"
    body = {"prompt": [5] * 40, "max_tokens": num_tokens, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def by_account(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["account"]: row for row in found["accounts"]}


def test_all_time_and_blocks_are_charged_to_the_two_accounts(server: ObservedServer) -> None:
    found = server.inspect("economics?window=run")
    assert found["check"]["step_time"]["ratio"] == 1.0
    assert found["check"]["blocks"]["ratio"] == pytest.approx(1.0, abs=0.005)
    assert (found["is_exact"], found["caveat"]) == (True, "")
    rows = by_account(found)
    assert set(rows) == set(KEYS)
    assert rows["key-1"]["step_seconds"] > rows["batch"]["step_seconds"] > 0
    assert rows["key-1"]["block_seconds"] > rows["batch"]["block_seconds"] > 0
    assert {name: row["requests"] for name, row in rows.items()} == {
        "key-1": {"length": 1},
        "batch": {"length": 2},
    }
    assert {name: row["num_generation_tokens"] for name, row in rows.items()} == {"key-1": 40, "batch": 2}
    assert rows["batch"]["num_cached_tokens"] == 32  # what it had sent itself; keys share no prefix
    top = found["top"]["by_step_seconds"]
    assert [row["account"] for row in top] == ["key-1", "batch", "batch"]


def test_metrics_and_requests_say_the_same(server: ObservedServer) -> None:
    rows, samples = by_account(server.inspect("economics?window=run")), server.samples()
    for account, row in rows.items():
        seconds = total(samples, "vllm_obs_account_step_seconds_total", account=account)
        assert seconds == pytest.approx(row["step_seconds"])
        assert (
            total(samples, "vllm_obs_account_tokens_total", account=account, kind="prompt")
            == (row["num_prompt_tokens"])
        )
    listed = server.inspect("requests?account=batch")["requests"]
    assert [row["external_id"] for row in listed] == ["ask-2", "ask-1"]
    assert sum(row["step_seconds"] for row in listed) == pytest.approx(rows["batch"]["step_seconds"])
    (sequence,) = server.request("ask-0")["sequences"]
    assert sequence["account"] == "key-1"
    assert any("of the engine's step time (100 %) and held" in each for each in sequence["explanation"])


def test_objectives_are_judged_and_the_worst_misses_named(server: ObservedServer) -> None:
    found = server.inspect("slo")
    assert found["targets"] == {"ttft": 30.0, "tpot": 0.000001}
    assert (found["num_attained"], found["num_missed"]) == (2, {"tpot": 1})

    def minute() -> dict[str, Any] | None:
        window: dict[str, Any] = server.inspect("slo")["windows"]["1m"]
        return window if window["num_attained"] + window["num_missed"] == 3 else None

    window = await_that(minute)
    assert window["attainment"] == pytest.approx(2 / 3)
    (worst,) = window["worst"]
    assert (worst["objective"], worst["stage"]) == ("tpot", "decode")
    assert worst["request_id"] == server.request("ask-0")["sequences"][0]["request_id"]
    assert server.inspect("state")["slo"]["num_missed"] == 1
    samples = server.samples()
    assert total(samples, "vllm_obs_slo_missed_total", objective="tpot") == 1
    assert total(samples, "vllm_obs_slo_attainment_ratio", window="1m") == pytest.approx(2 / 3)
    assert total(samples, "vllm_obs_goodput_requests_per_second", window="1m") > 0


def test_nothing_of_a_key_is_shown_anywhere(server: ObservedServer) -> None:
    shown = [server.exposition(), server.server.log.read_text()]
    shown += [json.dumps(server.inspect(path)) for path in ("config", "requests", "economics", "state")]
    assert not any(key in text for key in KEYS.values() for text in shown)
    assert server.inspect("config")["observer"]["accounts"] == ["key-1", "batch"]
