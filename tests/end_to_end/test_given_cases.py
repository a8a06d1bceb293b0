"""What users reported against servers of this kind, each kind as a request with its right answer."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asked import CHAT, TEXT, Asked, forced, joined
from serving import Server

pytestmark = pytest.mark.timeout(600)

FRANCE = "The capital of France is"
EMOJI = "naïve 🌶️👩‍🚀 日本語"
EOS, FULL_STOP = 2, 30
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def ask(float32_server: Server) -> Asked:
    return Asked(float32_server)


def test_characters_of_several_tokens_arrive_whole_in_a_stream(ask: Asked) -> None:
    fields = {"max_tokens": 96, **forced(EMOJI)}
    events = ask.events(CHAT, messages=[{"role": "user", "content": "Say it."}], **fields)
    pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(pieces) == EMOJI == ask.chat("Say it.", **fields)["message"]["content"]
    assert not any("\ufffd" in piece for piece in pieces)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_special_tokens_are_skipped_but_counted_or_shown_back_to_back(ask: Asked) -> None:
    fields = {"prompt": "Hey", "allowed_token_ids": [1], "max_tokens": 4, "ignore_eos": True}
    hidden = ask.reply(TEXT, **fields)
    assert (hidden["choices"][0]["text"], hidden["usage"]["completion_tokens"]) == ("", 4)
    shown = ask.text(**fields, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert shown["text"] == "<|im_start|>" * 4


def test_stop_string_inside_a_token_cuts_there(ask: Asked) -> None:
    fields = {"stop": ["QU"], "max_tokens": 40, **forced("one two QUARTERLY report")}
    choice = ask.chat("Say it.", **fields)
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "one two ",
        "stop",
        "QU",
    )
    assert ask.chat("Say it.", include_stop_str_in_output=True, **fields)["message"]["content"] == "one two QU"


def test_min_tokens_holds_off_stop_strings_and_the_end_of_text(ask: Asked) -> None:
    fields = {"prompt": FRANCE, "stop": [" "], "max_tokens": 20, "ignore_eos": True}
    assert ask.reply(TEXT, **fields)["usage"]["completion_tokens"] < 6
    assert ask.reply(TEXT, **fields, min_tokens=6)["usage"]["completion_tokens"] >= 6
    ended = ask.reply(TEXT, prompt=FRANCE, allowed_token_ids=[EOS, FULL_STOP], min_tokens=4, max_tokens=7)
    assert ended["usage"]["completion_tokens"] >= 4


def test_scoring_a_prompt_gives_its_log_probabilities_and_no_token(ask: Asked) -> None:
    reply = ask.reply(TEXT, prompt="Your answer: No", echo=True, logprobs=1, max_tokens=0)
    logprobs = reply["choices"][0]["logprobs"]["token_logprobs"]
    assert reply["choices"][0]["text"] == "Your answer: No"
    assert logprobs[0] is None
    assert all(-1e4 < value <= 0 for value in logprobs[1:])
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (len(logprobs), 0)
    status, body = ask.post(TEXT, prompt="Your answer: No", max_tokens=0)
    assert (status, body["error"]["param"]) == (400, "max_tokens")
    assert ask.server.request("GET", "/health")[0] == 200


def test_length_has_its_documented_defaults(ask: Asked) -> None:
    reply = ask.reply(TEXT, prompt=FRANCE, ignore_eos=True)
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (16, "length")
    messages = [{"role": "user", "content": "Count."}]
    newer = ask.reply(CHAT, messages=messages, max_tokens=12, max_completion_tokens=2, ignore_eos=True)
    assert newer["usage"]["completion_tokens"] == 2
    choice = ask.chat("Say fine", max_tokens=None, **forced("fine"))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("fine", "stop")


def test_truncated_prompt_keeps_its_end(ask: Asked) -> None:
    prompt = list(range(500, 530))
    choice = ask.text(prompt, truncate_prompt_tokens=4, max_tokens=1, return_token_ids=True)
    assert choice["prompt_token_ids"] == prompt[-4:]
    longer = ask.reply(TEXT, prompt=[504] * 2100, truncate_prompt_tokens=6, max_tokens=1)
    assert longer["usage"]["prompt_tokens"] == 6


def test_impossible_candidates_have_finite_log_probabilities(ask: Asked) -> None:
    choice = ask.chat("Good or bad?", logprobs=True, top_logprobs=5, max_tokens=8, **forced("bad"))
    entries = choice["logprobs"]["content"]
    values = [token["logprob"] for entry in entries for token in [entry, *entry["top_logprobs"]]]
    assert all(-9999.0 <= value <= 1e-3 for value in values)
    echoed = ask.text("correct horse", temperature=1, echo=True, logprobs=1, top_k=1, max_tokens=2)
    found = [value for value in echoed["logprobs"]["token_logprobs"][1:] if value is not None]
    assert len(found) == len(echoed["logprobs"]["tokens"]) - 1
    assert all(math.isfinite(value) for value in found)


def test_log_probabilities_have_the_shape_of_their_api_streamed_or_not(ask: Asked) -> None:
    legacy = ask.text(FRANCE, logprobs=0, max_tokens=4)["logprobs"]
    assert {len(legacy[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {4}
    assert all(len(top) == 1 for top in legacy["top_logprobs"])
    alone = ask.chat("Capital of Spain?", logprobs=True, max_tokens=6)["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in alone] == [[]] * len(alone)
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    whole = ask.chat("Capital of Spain?", **fields)["logprobs"]["content"]
    events = ask.events(CHAT, messages=[{"role": "user", "content": "Capital of Spain?"}], **fields)
    choices = [choice for event in events for choice in event["choices"] if choice["logprobs"]]
    assert [entry for choice in choices for entry in choice["logprobs"]["content"]] == whole


def test_prompt_log_probabilities_are_whole_however_warm_the_cache(ask: Asked) -> None:
    prompt = list(range(3000, 3070))
    cold, *warm = (
        ask.text(prompt, prompt_logprobs=1, max_tokens=1, cache_salt="scored")["prompt_logprobs"] for _ in range(3)
    )
    assert cold[0] is None
    own = [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], cold[1:], strict=True)]
    for scored in warm:
        again = [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], scored[1:], strict=True)]
        assert again == pytest.approx(own, abs=1e-3)


def test_seeded_text_does_not_depend_on_neighbours(ask: Asked) -> None:
    seeded = {"prompt": "Once", "temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    alone = ask.text(**seeded, seed=3)["text"]
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask.text, "A b", temperature=1.0, max_tokens=20) for _ in range(3)]
        assert pool.submit(lambda: ask.text(**seeded, seed=3)).result()["text"] == alone
        [other.result() for other in others]
    assert ask.text(**seeded, seed=4)["text"] != alone


@pytest.mark.parametrize(
    "fields",
    [{"temperature": -0.5}, {"top_p": 0}, {"top_k": -2}, {"min_p": 1.5}, {"logit_bias": {"49152": 1}}, {"n": 0}],
)
def test_bad_sampling_values_are_refused_by_name(ask: Asked, fields: dict[str, Any]) -> None:
    status, body = ask.post(TEXT, prompt="Hi", max_tokens=2, **fields)
    assert (status, body["error"]["param"]) == (400, next(iter(fields)))


def test_neutral_sampling_values_are_taken_and_bias_forces(ask: Asked) -> None:
    for neutral in ({"top_k": -1}, {"top_k": 0}, {"top_p": 1}, {"min_p": 0}, {"logit_bias": {"49151": 0}}):
        ask.text("Hi", max_tokens=1, **neutral)
    assert ask.text("Hi", max_tokens=3, logit_bias={"260": 60}, ignore_eos=True)["text"] == " the the the"


def test_penalties_look_where_they_should(ask: Asked) -> None:
    fields = {"prompt": f"We are in Paris. {FRANCE}", "max_tokens": 1}
    plain = ask.text(**fields)["text"]
    assert (plain, ask.text(**fields, presence_penalty=2, frequency_penalty=2)["text"]) == (" Paris", " Paris")
    assert ask.text(**fields, repetition_penalty=100.0)["text"] != plain


def test_usage_comes_once_at_the_end_of_a_stream_and_equals_the_whole_reply(ask: Asked) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    events = ask.events(CHAT, **fields, stream_options={"include_usage": True})
    whole = ask.reply(CHAT, **fields)["usage"]
    assert [event["choices"] == [] for event in events if "usage" in event] == [True]
    assert events[-1]["usage"] == {name: whole[name] for name in events[-1]["usage"]}
    assert not any("usage" in event for event in ask.events(CHAT, **fields, stream_options={}))
    assert ask.post(CHAT, **fields, stream_options={"include_usage": True})[0] == 400


def test_each_choice_of_a_stream_begins_with_its_role_and_ends_once(ask: Asked) -> None:
    messages = [{"role": "user", "content": "Say something."}]
    events = ask.events(CHAT, messages=messages, n=3, temperature=1.0, seed=1, max_tokens=5)
    for index in range(3):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
        assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]
        assert None not in [choice["delta"].get("content") for choice in choices]


def test_grammar_binds_its_own_request_and_no_neighbour(ask: Asked) -> None:
    plain = {"max_tokens": 24, "ignore_eos": True}
    alone = ask.text(FRANCE, **plain)["text"]
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    with ThreadPoolExecutor(4) as pool:
        bound = pool.submit(ask.chat, "Name a person", response_format=schema, max_tokens=40)
        others = [pool.submit(lambda: ask.text(FRANCE, **plain)) for _ in range(3)]
        assert [other.result()["text"] for other in others] == [alone] * 3
    choice = bound.result()
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"])["name"], str)


def test_document_cut_by_its_length_says_so(ask: Asked) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    choice = ask.chat("Name a person", response_format=schema, max_tokens=3)
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["content"])


def test_parts_of_a_message_are_its_text(ask: Asked) -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    listed = ask.reply("/tokenize", messages=[{"role": "user", "content": parts}])["tokens"]
    assert listed == ask.reply("/tokenize", messages=[{"role": "user", "content": "One.\nTwo."}])["tokens"]
    assert ask.post(CHAT, messages=[{"role": "user", "content": [{"type": "hologram"}]}])[0] == 400


def test_chat_runs_on_the_ids_of_its_template(ask: Asked) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    ids = ask.reply("/tokenize", messages=messages)["tokens"]
    assert (len(ids), ids.count(1), ids[0]) == (31, 3, 1)
    empty = ask.reply("/tokenize", messages=[{"role": "system", "content": ""}, *messages])["tokens"]
    assert len(empty) == 15
    reply = ask.reply(CHAT, messages=messages, max_tokens=8)
    assert reply["usage"]["prompt_tokens"] == 31
    assert ask.text(ids, max_tokens=8)["text"] == reply["choices"][0]["message"]["content"]


def test_prompts_of_token_ids_are_one_or_several(ask: Asked) -> None:
    assert ask.reply(TEXT, prompt=[0], max_tokens=1)["usage"]["prompt_tokens"] == 1
    several = ask.reply(TEXT, prompt=[[0], [0, 0]], max_tokens=1)
    assert (len(several["choices"]), several["usage"]["prompt_tokens"]) == (2, 3)
    ids = ask.reply("/tokenize", prompt=FRANCE)["tokens"]
    assert ask.text(ids, max_tokens=5)["text"] == ask.text(FRANCE, max_tokens=5)["text"]


def test_text_survives_its_tokens_and_unknown_ids_are_refused(ask: Asked) -> None:
    for text in (EMOJI, " Paris", "Hello 123"):
        assert ask.reply("/detokenize", tokens=ask.reply("/tokenize", prompt=text)["tokens"])["prompt"] == text
    assert ask.reply("/tokenize", prompt="Hello 123")["tokens"] == [19556, 216, 33, 34, 35]
    for token in (-1, 49_152):
        assert ask.post("/detokenize", tokens=[token])[0] == 400
        assert ask.post(TEXT, prompt=[token], max_tokens=1)[0] == 400


@pytest.mark.long
def test_cached_prefix_gives_the_tokens_of_a_cold_run(ask: Asked) -> None:
    prefix = " ".join(f"word{number}" for number in range(60))
    target = {"max_tokens": 8, "ignore_eos": True, "logprobs": 1, "prompt": prefix + " and then"}
    cold = ask.text(**target, cache_salt="cold")["logprobs"]
    ask.text(prefix + " but the.", cache_salt="warm", max_tokens=12, stop=["."])
    for _ in range(3):
        warm = ask.text(**target, cache_salt="warm")["logprobs"]
        assert warm["tokens"] == cold["tokens"]
        assert warm["token_logprobs"] == pytest.approx(cold["token_logprobs"], abs=1e-3)


@pytest.mark.long
def test_prompts_give_the_same_tokens_alone_at_once_and_in_one_request(ask: Asked) -> None:
    prompts = [FRANCE, "Once", "def add(a, b):", "Water boils at", "In 1969, humans"]
    fields = {"max_tokens": 12, "ignore_eos": True}
    alone = [ask.text(prompt, **fields)["text"] for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [choice["text"] for choice in pool.map(lambda p: ask.text(p, **fields), prompts)] == alone
    assert [choice["text"] for choice in ask.reply(TEXT, prompt=prompts, **fields)["choices"]] == alone


def test_streamed_chat_says_what_the_whole_one_says(ask: Asked) -> None:
    events = ask.events(CHAT, messages=[{"role": "user", "content": "Capital of Italy?"}], max_tokens=8)
    assert joined(events) == ask.chat("Capital of Italy?", max_tokens=8)["message"]["content"]
