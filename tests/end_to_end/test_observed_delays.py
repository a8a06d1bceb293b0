"""A delay planted at one place of a request's way shows in that place's stage, and in no other."""

import time
from collections.abc import Iterator

import pytest
from observed_server import ObservedServer, await_that, synthetic
from withheld import Withheld

MS = 10**6
NUM_REQUESTS, MAX_REQUESTS = 5, 30
SLACK_SECONDS = 0.05
"""What the kernel's ticks may be off."""
REST_MS = 25
"""All that a stage takes without a delay, at its best of a few requests."""

PLANTED = {
    "tokenizer": ("tokenize", 50),
    "engine_input": ("submit", 80),
    "scheduler": ("queue", 110),
    "execute_model": ("prefill", 140),
    "engine_output": ("return", 170),
    "detokenizer": ("detokenize", 200),
    "http_send": ("deliver", 230),
}
"""Where, in which stage it is to show, and for how many milliseconds: each its own, so that none is confused."""


@pytest.fixture(scope="module")
def delayed() -> Iterator[ObservedServer]:
    faults = ",".join(f"{site}=delay:{length / 1000}" for site, (_, length) in PLANTED.items())
    env = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": faults}
    with synthetic(env=env) as server:
        yield server


def test_each_planted_delay_shows_in_its_own_stage_alone(delayed: ObservedServer) -> None:
    told: list[dict[str, int]] = []
    while len(told) < MAX_REQUESTS and (not told or misplaced(told)):
        labels = [f"slow-{len(told) + number}" for number in range(NUM_REQUESTS)]
        for label in labels:
            delayed.complete(label, prompt="Once", max_tokens=1)
        told += [await_that(lambda label=label: ended(delayed, label)) for label in labels]
    assert misplaced(told) == {}


def test_what_holds_up_the_event_loop_itself_is_not_put_down_to_others(delayed: ObservedServer) -> None:
    """Other tests take from a promised deadline what `Withheld` says; a loop that is blocked must not get by."""
    blocked_seconds = PLANTED["http_send"][1] / 1000
    own_seconds = []
    for _ in range(5):
        withheld, begun_at = Withheld(delayed.server.process.pid, ()), time.monotonic()
        assert delayed.server.request("GET", "/livez")[0] == 200
        own_seconds.append(time.monotonic() - begun_at - withheld.seconds())
    assert max(own_seconds) > blocked_seconds - SLACK_SECONDS, own_seconds


def misplaced(told: list[dict[str, int]]) -> dict[str, float]:
    """The stages that took less than was planted there or much more, and how many ms at their best."""
    least = {stage: min(stages[stage] for stages in told) / MS for stage in told[0]}
    planted = dict(PLANTED.values())
    return {
        stage: length
        for stage, length in least.items()
        if not planted.get(stage, 0) <= length < planted.get(stage, 0) + REST_MS
    }


def ended(server: ObservedServer, label: str) -> dict[str, int] | None:
    (sequence,) = server.request(label)["sequences"]
    stages: dict[str, int] = sequence["stage_ns"]
    return stages if sequence["ended"] and sequence["status"] == 200 else None
