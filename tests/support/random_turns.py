"""Bodies for /v1/responses and /v1/messages, with every field that shapes a reply; one for each number."""

import random
from typing import Any

from random_exchanges import CALLS, CITY, PIECES, STOPS, TEXTS, THOUGHTS, repeated, some
from random_schemas import random_schema
from serving import MODEL

Fields = dict[str, Any]

NAMES = ("get_weather", "ping")


def random_response(number: int) -> Fields:
    """The body of a response of that number."""
    rng = random.Random(number)
    make = rng.choice([_plain_input, _plain_input, _repeated_input, _called_input])
    return {
        "model": MODEL,
        "store": False,
        "seed": rng.randrange(2**40),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "max_output_tokens": rng.choice([1, 8, 24, 40]),
        **some(rng, 0.3, top_logprobs=rng.randint(1, 5)),
        **some(rng, 0.3, include=["message.output_text.logprobs"]),
        **some(rng, 0.3, stop=rng.sample(STOPS, 2)),
        **some(rng, 0.2, include_stop_str_in_output=True),
        **some(rng, 0.2, skip_special_tokens=False),
        **make(rng),
    }


def _plain_input(rng: random.Random) -> Fields:
    form = {"type": "json_schema", "name": "s", "schema": random_schema(rng.randrange(1000))}
    return {
        "input": f"{rng.choice(TEXTS)} {rng.randrange(1000)}",
        **some(rng, 0.2, instructions="Be brief."),
        **(some(rng, 0.2, text={"format": form}) or some(rng, 0.2, allowed_token_ids=list(PIECES))),
    }


def _repeated_input(rng: random.Random) -> Fields:
    text = rng.choice([*THOUGHTS, *CALLS])
    tools = {"tools": _functions()} if text in CALLS else {}
    return {"input": repeated(text), "temperature": 0, "max_output_tokens": rng.choice([12, 40, 60]), **tools}


def _called_input(rng: random.Random) -> Fields:
    named = {"type": "function", "name": rng.choice(NAMES)}
    return {
        "input": "What is the weather in Paris?",
        "tools": _functions(),
        "tool_choice": rng.choice(["auto", "required", "none", named]),
        "max_output_tokens": rng.choice([5, 30, 60]),
    }


def _functions() -> list[Fields]:
    return [{"type": "function", "name": name, "parameters": CITY} for name in NAMES]


def random_message(number: int) -> Fields:
    """The body of a message of that number: greedy, as there is no field for a seed."""
    rng = random.Random(number)
    make = rng.choice([_plain_turns, _repeated_turns, _called_turns])
    return {
        "model": MODEL,
        "temperature": 0,
        "max_tokens": rng.choice([1, 8, 24, 60]),
        **some(rng, 0.3, stop_sequences=rng.sample(STOPS, 2)),
        **some(rng, 0.4, thinking={"type": "enabled", "budget_tokens": 1024}),
        **make(rng),
    }


def _plain_turns(rng: random.Random) -> Fields:
    form = {"type": "json_schema", "schema": random_schema(rng.randrange(1000))}
    messages = [{"role": "user", "content": f"{rng.choice(TEXTS)} {rng.randrange(1000)}"}]
    beginning = {"role": "assistant", "content": "It is"}
    return {
        "messages": [*messages, *([beginning] if rng.random() < 0.3 else [])],
        **some(rng, 0.3, system="Be brief."),
        **some(rng, 0.2, output_config={"format": form}),
    }


def _repeated_turns(rng: random.Random) -> Fields:
    text = rng.choice([*THOUGHTS, *CALLS])
    return {"messages": repeated(text), **({"tools": _tools()} if text in CALLS else {})}


def _called_turns(rng: random.Random) -> Fields:
    choice = rng.choice([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": rng.choice(NAMES)}])
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    return {"messages": messages, "tools": _tools(), "tool_choice": choice}


def _tools() -> list[Fields]:
    return [{"name": name, "input_schema": CITY} for name in NAMES]
