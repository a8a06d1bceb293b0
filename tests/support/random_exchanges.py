"""Completions and chats as clients send them, with every field that shapes a reply; one for each number."""

import random
from dataclasses import dataclass, field
from typing import Any

from random_schemas import random_schema
from serving import MODEL

Fields = dict[str, Any]

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a little girl who",
    "日本語のテキスト: こんにちは、",
    "🙂🙃🙂🙃🙂🙃 é ü ☃ ☃ ☃",
    "def add(a, b):\n    return",
    "1, 2, 3, 4, 5, 6,",
    "<|im_start|>user\nHi<|im_end|>\n",
    "x",
)
STOPS = (
    *(" the", "e ", ".", "and", "\n", "n", "er", "a", "</", "🙂", "は", "<|im_end|>"),
    *("o t", " of t", "s a", ", 1", "ing ", "is t"),
)
"""Some lie within a token, some over two or three."""
PIECES = (*range(220, 260), 30, 28, 253, 504, 198, 2)
"""Tokens among which are single bytes of longer characters, that make none in most orders."""
WORDS = ("the", " Paris", "is", "e", "🙂")

FORMED = {"response_format", "structured_outputs", "allowed_token_ids", "tool_choice"}

SHOUT = "Say exactly: "
THOUGHTS = ("<think>I look at it.</think>Blue.", "<think>Hm\n🙂</think>\n\nRed is it.", "<think>a < b")
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    'Look:\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "ping", '
    '"arguments": {"é": 1}}\n</tool_call>',
    "a <tool_call> is no call </tool_call> b",
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "ping"}},
]


@dataclass
class Exchange:
    """A request that can be sent either way. Its stream has these options, where there are any."""

    path: str
    body: Fields
    stream_options: Fields | None = field(default=None)

    @property
    def streamed(self) -> Fields:
        """The body that asks for a stream."""
        options = {} if self.stream_options is None else {"stream_options": self.stream_options}
        return {**self.body, "stream": True, **options}


def random_exchange(number: int) -> Exchange:
    """The exchange of that number. What it draws is seeded, so that it is answered alike every time."""
    rng = random.Random(number)
    is_chat = rng.random() < 0.6
    path, make = ("/v1/chat/completions", _chat) if is_chat else ("/v1/completions", _completion)
    body = {"model": MODEL, **_sampling(rng), **_endings(rng), **_shown(rng), **make(rng)}
    if body.keys() & FORMED:
        body["bad_words"] = []  # or nothing might be left that may come next
    body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
    usage = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
    return Exchange(path, body, usage if rng.random() < 0.8 else rng.choice([None, {"include_usage": False}]))


def some(rng: random.Random, share: float, **fields: Any) -> Fields:
    """These fields, now and then."""
    return fields if rng.random() < share else {}


def _sampling(rng: random.Random) -> Fields:
    return {
        "n": rng.choice([1, 1, 2, 3]),
        "seed": rng.randrange(2**40),
        "temperature": rng.choice([0, 0.7, 1.0, 1.5]),
        **some(rng, 0.2, top_p=rng.choice([0.5, 0.95])),
        **some(rng, 0.2, top_k=rng.randint(1, 50)),
        **some(rng, 0.1, min_p=0.05),
        **some(rng, 0.2, frequency_penalty=0.8, presence_penalty=0.2),
        **some(rng, 0.2, repetition_penalty=1.2),
        **some(rng, 0.15, bad_words=rng.sample(WORDS, 2)),
        **some(rng, 0.15, logit_bias={str(token): rng.choice([-50, -2, 4]) for token in rng.sample(PIECES, 3)}),
    }


def _endings(rng: random.Random) -> Fields:
    max_tokens = rng.choice([1, 3, 8, 16, 24])
    return {
        "max_tokens": max_tokens,
        **some(rng, 0.5, stop=rng.sample(STOPS, rng.randint(1, 4))),
        **some(rng, 0.4, include_stop_str_in_output=True),
        **some(rng, 0.2, min_tokens=rng.randint(0, max_tokens)),
        **some(rng, 0.15, stop_token_ids=rng.sample(PIECES, 2)),
        **some(rng, 0.15, ignore_eos=True),
    }


def _shown(rng: random.Random) -> Fields:
    return {
        **some(rng, 0.5, return_token_ids=True),
        **some(rng, 0.1, return_tokens_as_token_ids=True),
        **some(rng, 0.3, skip_special_tokens=False),
    }


def _completion(rng: random.Random) -> Fields:
    text = rng.choice(TEXTS)
    prompt = rng.choice([text, text, rng.sample(TEXTS, 2), rng.choices(range(2, 49_000), k=7), [[1, 504], [5, 2]]])
    is_scored = rng.random() < 0.05
    return {
        "prompt": prompt,
        **some(rng, 0.6, logprobs=rng.randint(0, 5)),
        **some(rng, 0.3, echo=True),
        **some(rng, 0.1, truncate_prompt_tokens=3),
        **(_form(rng) or some(rng, 0.2, allowed_token_ids=list(PIECES))),
        **({"echo": True, "max_tokens": 0} if is_scored else {}),
    }


def _form(rng: random.Random) -> Fields:
    """Sometimes a form that the text has; a schema's documents are cut off as often as not."""
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": random_schema(rng.randrange(1000))}}
    forms = [
        {"response_format": schema, "max_tokens": 40},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["日本 🙂 é", "日本 🙂 è", "no"]}},
        {"structured_outputs": {"regex": "[a-z]{2,5}( [☃🙂é]){1,4}"}},
    ]
    return rng.choice(forms) if rng.random() < 0.2 else {}


def _chat(rng: random.Random) -> Fields:
    kind = rng.choice(["plain", "plain", "repeat", "tools", "tools"])
    make = {"plain": _plain_chat, "repeat": _repeating_chat, "tools": _tool_chat}[kind]
    with_logprobs = rng.random() < 0.5
    return {
        **({"logprobs": True} if with_logprobs else {}),
        **(some(rng, 0.8, top_logprobs=rng.randint(0, 5)) if with_logprobs else {}),
        **some(rng, 0.2, include_reasoning=False),
        **make(rng),
    }


def _plain_chat(rng: random.Random) -> Fields:
    messages = [{"role": "user", "content": rng.choice(TEXTS)}]
    if rng.random() < 0.2:
        messages.append({"role": "assistant", "content": "It is"})
        return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    return {"messages": messages, **(_form(rng) or some(rng, 0.2, allowed_token_ids=list(PIECES)))}


def _repeating_chat(rng: random.Random) -> Fields:
    """A small model says after others what it has seen often: so it thinks, and calls."""
    text = rng.choice([*THOUGHTS, *CALLS])
    tools = {"tools": TOOLS, "tool_choice": "auto"} if text in CALLS else {}
    penalties = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
    sampling = {**penalties, "temperature": rng.choice([0, 0, 0.7]), "max_tokens": rng.choice([12, 40, 60])}
    return {"messages": repeated(text), **tools, **sampling}


def repeated(text: str) -> list[Fields]:
    """Messages after which the model says this text, or nearly so."""
    ask, answer = {"role": "user", "content": SHOUT + text}, {"role": "assistant", "content": text}
    return [*[ask, answer] * 3, ask]


def _tool_chat(rng: random.Random) -> Fields:
    named = {"type": "function", "function": {"name": rng.choice(["get_weather", "ping"])}}
    return {
        "messages": [{"role": "user", "content": rng.choice(["What is the weather in Paris?", "🙂?"])}],
        "tools": TOOLS,
        "tool_choice": rng.choice(["auto", "required", "required", named, named, "none"]),
        "max_tokens": rng.choice([5, 30, 60]),
        **some(rng, 0.3, parallel_tool_calls=False),
    }
