"""Measures whether one key's prompts can be told by how fast another key's are answered (promise P35).

    .venv/bin/vllm-obs serve --api-key-file KEYS
    .venv/bin/python benchmarks/prefix_timing.py http://127.0.0.1:8000 VICTIM_KEY ATTACKER_KEY

A victim sends a prompt; then an attacker sends the same one, and one that nobody has sent, in random order. What
is printed is how well the time to the first token tells the two apart: the area under the curve (AUC), 0.5 where
it does not tell at all and 1 where it always does. Where KEYS gives both keys one name they share the cache.
"""

import argparse
import http.client
import json
import random
import statistics
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

FIRST_ID, LAST_ID = 1000, 40_000
NUM_WARM_UP = 10


class Key:
    """Sends prompts with one key over one connection."""

    def __init__(self, url: str, key: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def seconds(self, prompt: Sequence[int]) -> float:
        """The time to the reply of one token. RuntimeError where it is refused."""
        body = json.dumps({"prompt": list(prompt), "max_tokens": 1})
        begun = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, self._headers)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {text[:200]!r}")
        return time.perf_counter() - begun


def area(cached: Sequence[float], fresh: Sequence[float]) -> float:
    """The chance that a cached prompt is answered sooner than a fresh one (Mann-Whitney); ties count half."""
    wins = sum((a < b) + (a == b) / 2 for a in cached for b in fresh)
    return wins / (len(cached) * len(fresh))


def measure(victim: Key, attacker: Key, asked: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Seconds of the attacker's requests: with the victim's prompts, and with prompts of nobody's."""
    cached: list[float] = []
    fresh: list[float] = []
    num_tokens, ends_at = asked.tokens, time.perf_counter() + asked.seconds
    for number in range(-NUM_WARM_UP, asked.samples):
        if time.perf_counter() > ends_at and fresh:
            break
        known, unknown = ([random.randint(FIRST_ID, LAST_ID) for _ in range(num_tokens)] for _ in range(2))
        victim.seconds(known)
        for prompt, times in random.sample([(known, cached), (unknown, fresh)], 2):
            seconds = attacker.seconds(prompt)
            if number >= 0:
                times.append(seconds)
    return cached, fresh


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("victim_key")
    parser.add_argument("attacker_key")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long with fewer samples")
    options = parser.parse_args()
    keys = (Key(options.url, options.victim_key), Key(options.url, options.attacker_key))
    cached, fresh = measure(*keys, options)
    medians = [statistics.median(times) * 1000 for times in (cached, fresh)]
    print(
        f"AUC {area(cached, fresh):.3f} of {len(fresh)} samples of {options.tokens} tokens; "
        f"medians {medians[0]:.1f} ms (the victim's prompt), {medians[1]:.1f} ms (nobody's)"
    )


if __name__ == "__main__":
    main()
