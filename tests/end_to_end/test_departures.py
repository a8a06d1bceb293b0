"""Clients leave in whatever state their request is, and a cache is far too small: nothing is left behind."""

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from load_client import Asked, LoadClient, Seen
from observed_server import ObservedServer, Samples, await_that, total
from serving import serving

SECONDS = 3.0
"""Three times the second within which the blocks are to be back."""
STORM_SECONDS = 3 * 60.0
MAX_IN_A_ROW = 2
"""Preemptions without a token in between; of the scheduler alone its own test says the same."""
NUM_BLOCKS = 32
NUM_SEQS = 16
ARGS = [
    *("--dtype", "float32", "--max-model-len", "500", "--max-num-batched-tokens", "48"),
    *("--max-num-seqs", str(NUM_SEQS), "--num-gpu-blocks-override", str(NUM_BLOCKS)),
]
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    with serving(*ARGS) as running, contextlib.closing(ObservedServer(running)) as observed:
        yield observed


def level(samples: Samples, state: str) -> float:
    return total(samples, f"vllm:num_requests_{state}")


def num_live(server: ObservedServer) -> float:
    """How many run or wait, whoever was preempted included."""
    samples = server.samples()
    return level(samples, "running") + level(samples, "waiting")


def is_idle(samples: Samples) -> bool:
    """Nobody runs or waits, and every block is free or cached."""
    blocks = {state: total(samples, "vllm_obs_kv_blocks", state=state) for state in ("active", "cached", "free")}
    assert sum(blocks.values()) == NUM_BLOCKS
    return level(samples, "running") == level(samples, "waiting") == blocks["active"] == 0


def ended(samples: Samples, reason: str) -> float:
    """Sequences that ended so, so far."""
    return total(samples, "vllm:request_success_total", finished_reason=reason)


class Departure:
    """What is counted before and after somebody leaves."""

    def __init__(self, server: ObservedServer) -> None:
        self._server = server
        self._before = self._await_idle()
        self.seconds = 0.0

    def after(self) -> tuple[int, int]:
        """Sequences that were aborted and that ended by themselves since, once everything is idle again."""
        began_at = time.monotonic()
        samples = self._await_idle()
        self.seconds = time.monotonic() - began_at
        assert self.seconds < SECONDS
        await_that(lambda: self._num_ended(self._server.samples()) > 0)
        time.sleep(0.3)  # a second count of the same would have come by now
        samples = self._server.samples()
        num_aborted = ended(samples, "abort") - ended(self._before, "abort")
        return round(num_aborted), round(self._num_ended(samples) - num_aborted)

    def num_aborted(self) -> float:
        """Sequences that were aborted since, while others may go on."""
        return ended(self._server.samples(), "abort") - ended(self._before, "abort")

    def _num_ended(self, samples: Samples) -> float:
        return sum(ended(samples, reason) - ended(self._before, reason) for reason in ("abort", "stop", "length"))

    def _await_idle(self) -> Samples:
        def look() -> Samples | None:
            samples = self._server.samples()
            return samples if is_idle(samples) else None

        found: Samples = await_that(look, 20)
        return found


STATES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "prefill": ({**LONG, "prompt": [5] * 450, "max_tokens": 20}, {"leave_seconds": 0.3}, (1, 0)),
    "decode": (LONG, {"leave_events": 3}, (1, 0)),
    "four sequences": ({**LONG, "n": 4}, {"leave_events": 6}, (4, 0)),
    "not streamed": ({**LONG, "stream": False}, {"leave_seconds": 0.5}, (1, 0)),
}
"""By state: what is asked for, when its client leaves, and how many sequences are aborted and finish."""


@pytest.mark.parametrize("state", STATES)
def test_who_leaves_is_aborted_once_and_gives_the_blocks_back(server: ObservedServer, state: str) -> None:
    asked, leaves, expected = STATES[state]
    departure = Departure(server)
    (seen,) = LoadClient(server.port, 1).run([Asked(state, asked, **leaves)])
    assert seen.has_left
    assert departure.after() == expected
    print(f"{state}: idle {departure.seconds:.2f} s after the client had left")


def test_who_leaves_the_queue_is_aborted_once_and_the_others_go_on(server: ObservedServer) -> None:
    departure = Departure(server)
    running = [Asked(f"runs-{number}", {**LONG, "max_tokens": 60}) for number in range(NUM_SEQS)]
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(LoadClient(server.port, NUM_SEQS).run, running)
        await_that(lambda: num_live(server) == NUM_SEQS, 20)  # so that it is the last, and they fill the engine
        (seen,) = LoadClient(server.port, 1).run([Asked("queued", LONG, leave_seconds=0.2)])
        await_that(lambda: departure.num_aborted() == 1, SECONDS)
    assert (seen.has_left, seen.events) == (True, []), "it had no token yet"
    assert [one.finish_reasons for one in others.result()] == [["length"]] * NUM_SEQS
    assert departure.after() == (1, NUM_SEQS)


def test_who_leaves_with_the_last_token_has_one_ending_of_either_kind(server: ObservedServer) -> None:
    departure = Departure(server)
    asked = [Asked(f"last-{number}", {**LONG, "max_tokens": 5}, leave_events=5) for number in range(4)]
    LoadClient(server.port, 4).run(asked)
    num_aborted, num_finished = departure.after()
    assert num_aborted + num_finished == 4


def test_a_full_cache_with_storms_of_preemptions_and_departures_ends_every_request(server: ObservedServer) -> None:
    draw = random.Random(5)
    before = server.samples()

    def asked(number: int) -> Asked:
        prompt = [draw.randrange(100, 9000) for _ in range(draw.randint(4, 15))]
        leaves = {"leave_seconds": draw.uniform(0.1, 4.0)} if number % 4 == 0 else {}
        body = {**LONG, "prompt": prompt, "max_tokens": draw.randint(40, 80), "stream": number % 2 == 0}
        return Asked(f"storm-{number}", body, **leaves)

    requests = [asked(number) for number in range(16)]
    began_at = time.monotonic()
    seen = LoadClient(server.port, len(requests)).run(requests)
    stayed = [one for one in seen if not one.has_left]
    assert [one.finish_reasons for one in stayed] == [["length"]] * len(stayed)
    took = time.monotonic() - began_at
    print(f"{len(stayed)} of {len(requests)} served in {took:.1f} s")
    assert took < STORM_SECONDS
    await_that(lambda: is_idle(server.samples()), SECONDS)
    after = server.samples()
    num_preempted = total(after, "vllm:num_preemptions_total") - total(before, "vllm:num_preemptions_total")
    print(f"{num_preempted:.0f} preemptions")
    assert num_preempted > 2
    assert total(after, "vllm_obs_invariant_violations_total") == 0
    most = max(num_preemptions(server, one) for one in stayed)
    print(f"at most {most} of one request")


def num_preemptions(server: ObservedServer, seen: Seen) -> int:
    """How often one request's sequence was preempted, as the inspector tells; no third time without a token."""
    (sequence,) = server.request(seen.asked.label)["sequences"]
    stages = [stage for stage, _ in itertools.groupby(sequence["intervals"]["stages"])]
    told = [stage for stage in stages if stage in ("preempted", "decode")]
    in_a_row = [len(list(group)) for stage, group in itertools.groupby(told) if stage == "preempted"]
    assert max(in_a_row, default=0) <= MAX_IN_A_ROW, stages
    return int(sequence["num_preemptions"])
