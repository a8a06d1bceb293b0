"""Hostile numbers and lists of them: counts, lengths, shares, token ids, and their products."""

from collections.abc import Iterator
from typing import Any

from hostile_exchange import Case
from hostile_routes import (
    BATCH,
    CHAT,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SAMPLED,
    TEXT,
    merged,
    on_each,
    raw,
    refused,
    served,
)

NO_INTEGERS = (True, "3", 3.5, [], {}, [1], "")
HUGE_INTEGERS = (2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**40)
DIGITS = b"9" * 400
LENGTHS = {
    TEXT: "max_tokens",
    "/v1/completions/render": "max_tokens",
    CHAT: "max_tokens",
    "/v1/chat/completions/render": "max_tokens",
    BATCH: "max_tokens",
    RESPONSES: "max_output_tokens",
    MESSAGES: "max_tokens",
}
VOCAB = 49_152
NO_IDS = (-1, VOCAB, 2**31, 2**63, 2**64, 1.5, True, "1", [1], {}, 10**40)
"""Where whole numbers may be spelled as floats (1.0), as in all but prompts, that is no fault."""
MAYBE = ("invalid_value", "too_many_sequences", "unsupported", "context_length_exceeded")

SHARES: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, 2.5, 10**40, "hot", True, [], -1e-9),
    "top_p": (0, 2, -0.1, 1.0000001, "x", True),
    "min_p": (-0.1, 1.5, "x"),
    "presence_penalty": (3, -3, "x", True),
    "frequency_penalty": (3, -3, "x", {}),
    "repetition_penalty": (0, -1, "x"),
}


def number_cases() -> Iterator[Case]:
    """H5 to H12 and H22."""
    yield from _counts()
    yield from _lengths()
    yield from _shares()
    yield from _logprobs()
    yield from _prompt_ids()
    yield from _id_lists()
    yield from _stops()
    yield from _products()


def _counts() -> Iterator[Case]:
    for n in (0, -1, 1025, 16385, 10**9, *HUGE_INTEGERS, -(2**63)):
        yield from on_each(SAMPLED, "H5", {"n": n}, *MAYBE)
    for n in NO_INTEGERS:
        yield from on_each(SAMPLED, "H6", {"n": n})
    for path in SAMPLED:
        body = merged(path, {})[:-1]
        yield raw("H5", path, body + b',"n":%b}' % DIGITS, "invalid_value", param="n")
        yield raw("H5", path, body + b',"n":-%b}' % DIGITS, "invalid_value", param="n")
    for name in ("stream", "ignore_eos", "skip_special_tokens", "return_token_ids"):
        yield from on_each(SAMPLED, "H6", {name: "yes"}, *MAYBE)
        yield from on_each(SAMPLED, "H6", {name: 1}, *MAYBE)
    for top_n in (-1, True, "1", 1.5, 2**64):
        yield refused("H5", RERANK, {"top_n": top_n})
    for dimensions in (0, -1, 577, 2**31, 2**64, True, "5"):
        yield refused("H5", EMBEDDINGS, {"dimensions": dimensions})


def _lengths() -> Iterator[Case]:
    for path, name in LENGTHS.items():
        for value in (-1, 0, *HUGE_INTEGERS, *NO_INTEGERS[:4], -(2**63)):
            yield refused("H7", path, {name: value}, *MAYBE)
        yield refused("H7", path, {name: 2048}, "context_length_exceeded")
    for path in SAMPLED:
        for value in (-1, 2049, 5000, *HUGE_INTEGERS, *NO_INTEGERS[:4]):
            yield refused("H7", path, {"min_tokens": value}, *MAYBE)
        for value in (0, -2, 4096, *HUGE_INTEGERS, True, "1"):
            yield refused("H7", path, {"truncate_prompt_tokens": value}, *MAYBE)
    yield refused("H7", CHAT, {"min_tokens": 5000, "max_tokens": None}, param="min_tokens")
    yield served("H7", TEXT, {"max_tokens": 0, "echo": True})


def _shares() -> Iterator[Case]:
    for name, values in SHARES.items():
        for value in values:
            yield from on_each(SAMPLED, "H8", {name: value})
        for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"):
            for path in (TEXT, CHAT, RESPONSES):
                body = merged(path, {})[:-1] + b',"%b":%b}' % (name.encode(), word)
                yield raw("H8", path, body, "invalid_value", param=name)
    for top_k in (-2, *HUGE_INTEGERS, *NO_INTEGERS[:4]):
        yield from on_each(SAMPLED, "H8", {"top_k": top_k})
    for temperature in (-1, 1.5, "hot"):
        yield refused("H8", MESSAGES, {"temperature": temperature})
    for penalty in (1e-300, 1e-30, 1e30, 1e300):
        yield served("H8", TEXT, {"repetition_penalty": penalty, "prompt": "the the the"})
    yield served("H8", TEXT, {"top_p": 1e-300, "temperature": 1e-300, "min_p": 1e-300})
    yield served("H8", TEXT, {"top_p": 5e-324, "temperature": 1.0, "min_p": 5e-324, "top_k": 2**31 - 1})


def _logprobs() -> Iterator[Case]:
    text, chat = SAMPLED[:2], SAMPLED[2:5]
    for value in (-1, 101, 10**6, *HUGE_INTEGERS, *NO_INTEGERS[:4]):
        yield from on_each(text, "H9", {"logprobs": value})
        yield from on_each(text, "H9", {"prompt_logprobs": value})
        named = {"logprobs": True, "top_logprobs": value}
        yield from on_each(chat, "H9", named, any_param=True)
        yield refused("H9", RESPONSES, {"top_logprobs": value, "include": ["message.output_text.logprobs"]})
    yield from on_each(chat, "H9", {"logprobs": 5})
    yield refused("H9", TEXT, {"prompt_logprobs": 100, "prompt": [504] * 2000})


def _prompt_ids() -> Iterator[Case]:
    for bad in (*NO_IDS, 1.0):
        for path, field in ((TEXT, "prompt"), ("/v1/completions/render", "prompt"), (EMBEDDINGS, "input")):
            yield refused("H10", path, {field: [504, bad]})
            yield refused("H10", path, {field: [[504], [bad]]})
        if bad != 1.0 or bad is True:
            yield refused("H10", DETOKENIZE, {"tokens": [504, bad]})
    for mixed in ([1, "a"], ["a", 1], [[1], "a"], ["a", [1]], [[[1]]], 5, {}, {"a": 1}, True, [None], [[1, None]]):
        yield refused("H10", TEXT, {"prompt": mixed})
        yield refused("H10", EMBEDDINGS, {"input": mixed})


def _id_lists() -> Iterator[Case]:
    for bad in NO_IDS:
        for name in ("stop_token_ids", "allowed_token_ids"):
            yield from on_each((TEXT, CHAT, RESPONSES), "H11", {name: [504, bad]})
    for key in ("49152", "-1", "x", "", "1.5", "999999999999999999999", "²", "1e3"):
        yield from on_each((TEXT, CHAT, RESPONSES), "H11", {"logit_bias": {key: 1}})
    for bias in ("x", True, None, [1], {}):
        yield from on_each((TEXT, CHAT), "H11", {"logit_bias": {"504": bias}}, any_param=True)
    for bad in ([1], "x", 5, {str(n): 1 for n in range(20_000)}, {str(n): "x" for n in range(20_000)}):
        yield from on_each((TEXT, CHAT), "H11", {"logit_bias": bad})
    for words in ([5], [""], "x", ["x" * 257], ["x"] * 1025, [["x"]], 5):
        yield from on_each((TEXT, CHAT), "H11", {"bad_words": words})
    for name, limit in (("stop_token_ids", 1025), ("allowed_token_ids", VOCAB + 1)):
        yield from on_each((TEXT, CHAT), "H11", {name: [504] * limit})
        yield from on_each((TEXT, CHAT), "H11", {name: 504})
    yield refused("H11", TEXT, {"allowed_token_ids": []})
    yield served("H11", TEXT, {"logit_bias": {"504": 1e308, "505": -1e308}})


def _stops() -> Iterator[Case]:
    limits: tuple[tuple[Any, str], ...] = (
        ("x" * 10_000_000, "1024 characters"),
        (["x"] * 10_000, "64 strings"),
        (["x" * 2000], "1024 characters"),
    )
    odd = (("", "empty"), ([""], "empty"), *((stop, "") for stop in ([5], 5, {}, [["x"]], [None])))
    for stop, says in (*limits, *odd):
        for path in (TEXT, CHAT, RESPONSES):
            yield refused("H12", path, {"stop": stop}, says=says)
        if isinstance(stop, list):
            yield refused("H12", MESSAGES, {"stop_sequences": stop}, says=says)


def _products() -> Iterator[Case]:
    many = ("too_many_sequences",)
    yield refused("H22", TEXT, {"prompt": ["x"] * 10_000}, *many)
    yield refused("H22", TEXT, {"prompt": [[504]] * 1025}, *many)
    yield refused("H22", TEXT, {"n": 11, "prompt": ["x"] * 100}, *many)
    yield refused("H22", TEXT, {"n": 1025}, *many)
    yield refused("H22", TEXT, {"prompt": ["x"] * 40, "allowed_token_ids": list(range(32_768))}, *many)
    yield refused("H22", BATCH, {"messages": [[{"role": "user", "content": "x"}]] * 1025}, *many, any_param=True)
    yield refused("H22", EMBEDDINGS, {"input": ["x"] * 2049}, *many)
    yield refused("H22", EMBEDDINGS, {"input": ["a" * 1_000_000] * 5}, *many)
    yield refused("H22", EMBEDDINGS, {"input": [[504] * 1025] * 1024}, *many)
    yield refused("H22", RERANK, {"documents": ["x"] * 10_000}, *many)
    yield refused("H22", "/score", {"text_2": ["x"] * 10_000}, *many)
    yield refused("H22", DETOKENIZE, {"tokens": [504] * 1_000_001})
