"""A mix of requests as a busy server sees them: good ones of all kinds, some that leave, some that are wrong."""

import random
from collections.abc import Iterator
from typing import Any

from load_client import CHAT, COMPLETIONS, Asked
from observed_server import NAME, VOCAB

MAX_PROMPT_TOKENS = 40
LONG_TOKENS = 300
"""So many tokens that a client which leaves is gone long before."""

BAD: list[Any] = [
    {"prompt": "Hi", "temperature": 9},
    {"prompt": ""},
    {"prompt": [VOCAB + 1]},
    {"prompt": "Hi", "model": "nobody"},
    {"prompt": "Hi", "max_tokens": 10**6},
    {"prompt": "Hi", "n": 10**6},
    {"max_tokens": 4},
    b"{not json",
]


class MixedLoad:
    """Draws requests; the same ones for the same seed. `phrases` are texts with what the model makes of them."""

    def __init__(self, seed: int, phrases: dict[str, str]) -> None:
        self._random = random.Random(seed)
        self._phrases = phrases

    def requests(self, count: int) -> Iterator[Asked]:
        """So many requests, labelled by their number."""
        kinds = {
            self._plain: 35,
            self._chat: 10,
            self._several: 10,
            self._stopped: 15,
            self._leaving: 15,
            self._impatient: 5,
            self._bad: 10,
        }
        for number, kind in enumerate(self._random.choices([*kinds], [*kinds.values()], k=count)):
            yield kind(f"mixed-{number}")

    def _prompt(self) -> list[int]:
        """Half of them begin alike, so that some are found in the prefix cache."""
        shared = [7] * 17 if self._random.random() < 0.5 else []
        return shared + self._random.choices(range(100, VOCAB), k=self._random.randint(1, MAX_PROMPT_TOKENS))

    def _good(self, **fields: Any) -> dict[str, Any]:
        body = {"model": NAME, "max_tokens": self._random.randint(1, 6), "ignore_eos": True, **fields}
        if self._random.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _plain(self, label: str) -> Asked:
        return Asked(label, self._good(prompt=self._prompt()))

    def _chat(self, label: str) -> Asked:
        messages = [{"role": "user", "content": f"Say {self._random.randint(0, 99)}"}]
        return Asked(label, self._good(messages=messages), CHAT)

    def _several(self, label: str) -> Asked:
        prompts = [self._prompt() for _ in range(self._random.randint(1, 2))]
        return Asked(label, self._good(prompt=prompts, n=self._random.randint(2, 3), seed=1))

    def _stopped(self, label: str) -> Asked:
        """A stop string that comes in its third to sixth character, which only the API server sees."""
        phrase, text = self._random.choice([*self._phrases.items()])
        return Asked(label, self._good(prompt=phrase, stop=text[3:6], max_tokens=LONG_TOKENS, temperature=0))

    def _leaving(self, label: str) -> Asked:
        body = {"prompt": self._prompt(), "max_tokens": LONG_TOKENS, "ignore_eos": True, "stream": True}
        return Asked(label, body, leave_events=self._random.randint(1, 4))

    def _impatient(self, label: str) -> Asked:
        body = {"prompt": self._prompt(), "max_tokens": LONG_TOKENS, "ignore_eos": True}
        return Asked(label, body, leave_seconds=self._random.uniform(0.001, 0.05))

    def _bad(self, label: str) -> Asked:
        return Asked(label, self._random.choice(BAD), COMPLETIONS)
