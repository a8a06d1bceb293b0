"""LLM over the default model: structured outputs offline, and beams that are as likely as they say."""

import json
from collections.abc import Iterator

import pytest

from vllm_obs import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", max_model_len=512, kv_cache_memory_bytes=1 << 27) as llm:
        yield llm


def test_outputs_match_a_schema_or_one_of_the_choices(llm: LLM) -> None:
    forms = [StructuredOutputsParams(json=SCHEMA), StructuredOutputsParams(choice=["red", "green"])]
    params = [SamplingParams(temperature=0, max_tokens=60, structured_outputs=form) for form in forms]
    outputs = llm.generate(["A person: ", "The colour of grass is "], params, use_tqdm=False)
    person = json.loads(outputs[0].outputs[0].text)
    assert person["name"] in ("Ann", "Bob")
    assert person["age"] in range(1, 10)
    assert outputs[1].outputs[0].text in ("red", "green")
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "stop"]


def test_beams_are_ordered_and_as_likely_as_they_say(llm: LLM) -> None:
    prompt = "The capital of France is"
    (output,) = llm.beam_search(prompt, BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True))
    beams = output.sequences
    assert len({tuple(beam.tokens) for beam in beams}) == len(beams) == 4
    assert [beam.score(1.0) for beam in beams] == sorted((beam.score(1.0) for beam in beams), reverse=True)
    num_prompt_tokens = len(llm.get_tokenizer().encode(prompt))
    scored = llm.generate(
        [{"prompt_token_ids": beam.tokens} for beam in beams],
        SamplingParams(max_tokens=1, prompt_logprobs=0),
        use_tqdm=False,
    )
    for beam, told in zip(beams, scored, strict=True):
        assert beam.finish_reason == "length"
        assert beam.text.startswith(prompt)
        assert told.prompt_logprobs is not None
        entries = told.prompt_logprobs[num_prompt_tokens:]
        total = sum(
            entry[token].logprob
            for entry, token in zip(entries, beam.tokens[num_prompt_tokens:], strict=True)
            if entry is not None
        )
        assert beam.cum_logprob == pytest.approx(total, abs=1e-3)


def test_a_beam_of_one_is_the_greedy_answer_whatever_runs_beside_it(llm: LLM) -> None:
    prompts = ["The capital of France is", "One, two, three,", "Hello"]
    beams = llm.beam_search(prompts, BeamSearchParams(1, 8, ignore_eos=True), concurrency_limit=2)
    greedy = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    assert [beam.sequences[0].tokens for beam in beams] == [
        answer.prompt_token_ids + answer.outputs[0].token_ids for answer in greedy
    ]
