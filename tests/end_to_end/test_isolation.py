"""One request of twenty goes wrong, wherever that is: it alone gets a 500, its peers what they get without it."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from load_client import Asked, LoadClient, Seen
from observed_server import ObservedServer, await_that, total
from serving import serving

from vllm_obs.engine.frontend.answer_watch import REST_SECONDS

NUM_PEERS = 19
SITES = {
    "tokenizer": "internal_error",
    "scheduler": "internal_error",
    "logits": "invalid_logits",
    "sampler": "internal_error",
    "grammar": "internal_error",
    "grammar_mask": "internal_error",
    "grammar_accept": "internal_error",
    "detokenizer": "internal_error",
}
"""Where a request can go wrong, and what it is told. The plant at each is for ids that hold `bad-SITE-`."""

PLANTS = ",".join(f"{site}=raise:bad-{site}-" for site in SITES)
WORDS = ("river", "stone", "lamp", "garden", "winter", "engine", "paper", "ocean", "mirror", "forest")
Said = tuple[str, list[int], list[str]]
GRAMMAR = {"structured_outputs": {"regex": "[a-z ]{4,40}"}}


@pytest.fixture(scope="module")
def running() -> Iterator[ObservedServer]:
    env = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": PLANTS}
    flags = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32")
    with serving(*flags, env=env) as server, contextlib.closing(ObservedServer(server)) as running:
        yield running


@pytest.fixture
def server(running: ObservedServer) -> ObservedServer:
    """Ready, whatever a test before has done to it."""
    await_that(lambda: running.server.request("GET", "/readyz")[0] == 200, 3 * REST_SECONDS)
    return running


def body(number: int, run: str) -> dict[str, Any]:
    """A short request; every third is streamed, every fourth drawn, every fifth under a grammar."""
    first, second = WORDS[number % 10], WORDS[number * 7 % 10]
    return {
        "prompt": f"The {first} and the {second} number {number} were",
        "max_tokens": 8,
        "temperature": 0.0 if number % 4 else 0.8,
        "seed": number,
        "return_token_ids": True,
        "cache_salt": run,
        "stream": number % 3 == 0,
        **(GRAMMAR if number % 5 == 0 else {}),
    }


def peers(run: str) -> list[Asked]:
    return [Asked(f"peer-{run}-{number}", body(number, run)) for number in range(NUM_PEERS)]


def said(seen: Seen) -> Said:
    """Text, tokens and ending, which are the same however a stream was cut into events."""
    assert seen.status == 200, seen.reply
    choices = [reply["choices"][0] for reply in seen.events or [seen.reply] if reply["choices"]]
    token_ids = [token for choice in choices for token in choice["token_ids"] or ()]
    return "".join(choice["text"] for choice in choices), token_ids, seen.finish_reasons


@pytest.fixture(scope="module")
def without(running: ObservedServer) -> list[Said]:
    """What the peers are told when nobody goes wrong."""
    seen = LoadClient(running.port, NUM_PEERS).run(peers("without"))
    return [said(one) for one in seen]


def errors(server: ObservedServer, reason: str) -> Counter[str]:
    """Errors of that kind so far, by what else is said of them: where they showed."""
    found = server.samples().get("vllm_obs_errors_total", [])
    return Counter({str(labels): round(value) for labels, value in found if labels["type"] == reason})


@pytest.mark.parametrize("site", SITES)
def test_one_of_twenty_goes_wrong_alone(server: ObservedServer, without: list[Said], site: str) -> None:
    before = errors(server, SITES[site])
    bad = Asked(f"bad-{site}-", {**body(1, site), **(GRAMMAR if "grammar" in site else {})})
    asked = peers(site)
    asked.insert(7, bad)
    began_at = time.monotonic()
    seen = LoadClient(server.port, NUM_PEERS + 1).run(asked)
    print(f"{site}: {time.monotonic() - began_at:.2f} s in all, {seen[7].elapsed_ns / 1e9:.2f} s for the bad one")
    failed = seen.pop(7)
    assert (failed.status, failed.reply["error"]["reason"]) == (500, SITES[site])
    assert "planted" not in str(failed.reply)
    assert [said(one) for one in seen] == without
    await_that(lambda: errors(server, SITES[site]) - before)
    await_that(lambda: is_idle(server))
    assert set((errors(server, SITES[site]) - before).values()) == {1}, "in each place once"


def is_idle(server: ObservedServer) -> bool:
    """Nobody runs or waits, and no block is held."""
    samples = server.samples()
    running, waiting = (total(samples, f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    return running == waiting == total(samples, "vllm_obs_kv_blocks", state="active") == 0


def test_a_stream_that_goes_wrong_ends_with_the_error_and_no_done(server: ObservedServer) -> None:
    asked = Asked("bad-detokenizer-", {**body(1, "stream"), "stream": True})
    (seen,) = LoadClient(server.port, 1).run([asked])
    assert seen.status == 200
    assert seen.events[-1]["error"]["reason"] == "internal_error"
    assert not seen.is_done


def test_three_answers_without_numbers_in_a_row_are_not_ready(server: ObservedServer) -> None:
    client = LoadClient(server.port, 1)
    for attempt in range(3):
        assert server.server.request("GET", "/readyz")[0] == 200, attempt
        (seen,) = client.run([Asked("bad-logits-", body(1, f"row {attempt}"))])
        assert (seen.status, seen.reply["error"]["reason"]) == (500, "invalid_logits")
    status, reply = server.server.request("GET", "/readyz")
    assert (status, reply["error"]["reason"]) == (503, "not_ready")
    assert server.server.request("GET", "/livez") == (200, {"status": "broken"})
    (seen,) = client.run([Asked("next", body(1, "next"))])
    assert (seen.status, seen.reply["error"]["reason"]) == (503, "not_ready")
