"""The runner gives every sequence the tokens it would get alone, however its steps are cut."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fake_decoder import FakeDecoder, history, logits_of
from plan_driver import Driver

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import StepPlan
from vllm_obs.engine.worker import prompt_scores

NewDriver = Callable[..., Driver]

SPECS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=0.9, seed=1),
    SamplingSpec(top_p=0.8, top_k=10, seed=2),
    SamplingSpec(temperature=1.2, repetition_penalty=1.5, frequency_penalty=0.5, seed=3),
    SamplingSpec(temperature=0.0, logprobs=2, presence_penalty=2.0),
    SamplingSpec(min_p=0.02, min_tokens=4, eos_token_ids=(5,), seed=4, prompt_logprobs=1),
    SamplingSpec(bad_words_ids=((7,), (1, 2)), seed=5),
    SamplingSpec(logit_bias=((9, 2.0),), seed=6, logprobs=0),
]
PROMPTS = [np.random.default_rng(row).integers(0, 64, 1 + 5 * row).tolist() for row in range(len(SPECS))]


def alone(new_driver: NewDriver) -> dict[str, list[int]]:
    outputs = {}
    for place, (prompt, spec) in enumerate(zip(PROMPTS, SPECS, strict=True)):
        driver = new_driver(seed=place)
        driver.add(str(place), prompt, spec, 10 + place)
        outputs |= driver.run_all()
    return outputs


def filled(driver: Driver) -> Driver:
    for place, (prompt, spec) in enumerate(zip(PROMPTS, SPECS, strict=True)):
        driver.add(str(place), prompt, spec, 10 + place)
    return driver


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_batched_and_chunked_steps_give_the_tokens_of_a_whole_prompt_alone(
    new_driver: NewDriver, chunk: int
) -> None:
    assert filled(new_driver()).run_all(chunk) == alone(new_driver)


@pytest.mark.parametrize("seed", range(5))
def test_stalls_preemptions_and_uneven_chunks_change_nothing(new_driver: NewDriver, seed: int) -> None:
    driver = filled(new_driver(seed=seed))
    random = np.random.default_rng(seed)
    while names := driver.unfinished():
        if random.random() < 0.2:
            driver.preempt(str(random.choice(names)))
        chosen = [name for name in names if random.random() < 0.7]
        random.shuffle(chosen)
        driver.run({name: int(random.integers(1, 9)) for name in chosen}, bool(random.random() < 0.5))
    assert {name: sequence.outputs for name, sequence in driver.sequences.items()} == alone(new_driver)
    driver.run({})
    assert driver.runner.input_batch.num_rows == 0


def test_greedy_tokens_are_the_model_s_best(new_driver: NewDriver) -> None:
    driver = new_driver()
    driver.add("a", [3, 1, 4], SamplingSpec(temperature=0.0), 6)
    (outputs,) = driver.run_all(2).values()
    tokens = [3, 1, 4]
    for token in outputs:
        assert token == int(logits_of(history(tokens)).argmax())
        tokens.append(token)


@pytest.mark.parametrize(("chunk", "logits_bytes"), [(4, 2**20), (100, 2**20), (100, 4 * 64 * 3), (5, 1)])
def test_prompt_logprobs_cover_every_position_but_the_last_in_bounded_slices(
    new_driver: NewDriver,
    fake_model: FakeDecoder,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    logits_bytes: int,
) -> None:
    monkeypatch.setattr(prompt_scores, "PROMPT_LOGITS_BYTES", logits_bytes)
    prompt = np.random.default_rng(9).integers(0, 64, 23).tolist()
    driver = new_driver()
    driver.add("other", [1, 2], SamplingSpec(temperature=0.0), 30)
    driver.add("a", prompt, SamplingSpec(temperature=0.0, prompt_logprobs=2), 2)
    driver.run_all(chunk)
    assert max(fake_model.heads) <= max(2, logits_bytes // (4 * 64))
    assert list(driver.prompt_logprobs) == ["a"]
    parts = driver.prompt_logprobs["a"]
    tokens, values, ranks = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    assert tokens[:, 0].tolist() == prompt[1:]
    for position in range(22):
        expected = torch.log_softmax(logits_of(history(prompt[: position + 1])), dim=-1)
        assert values[position].tolist() == pytest.approx(expected[tokens[position]].tolist(), abs=1e-5)
        assert tokens[position, 1:].tolist() == expected.topk(2).indices.tolist()
        assert ranks[position] == 1 + int((expected > expected[prompt[position + 1]]).sum())


def test_a_preempted_sequence_s_prompt_is_not_answered_twice(new_driver: NewDriver) -> None:
    driver = new_driver()
    driver.add("a", [1, 2, 3], SamplingSpec(prompt_logprobs=0, seed=1), 3)
    driver.run({"a": 10})
    driver.preempt("a")
    driver.run_all()
    assert len(driver.prompt_logprobs["a"]) == 1


def test_a_prompt_of_one_token_has_no_prompt_logprobs(new_driver: NewDriver) -> None:
    driver = new_driver()
    driver.add("a", [1], SamplingSpec(prompt_logprobs=0), 1)
    driver.run_all()
    assert driver.prompt_logprobs == {}


def test_a_row_that_is_not_finite_fails_and_its_peers_go_on(
    new_driver: NewDriver, fake_model: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = filled(new_driver()).run_all()
    driver = filled(new_driver())
    names = list(driver.sequences)
    compute_logits = type(fake_model).compute_logits

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = compute_logits(fake_model, hidden)
        logits[3] = torch.nan
        return logits

    driver.run(dict.fromkeys(names, 100))
    monkeypatch.setattr(fake_model, "compute_logits", poisoned)
    output = driver.run(dict.fromkeys(names, 100))
    monkeypatch.undo()
    assert driver.failed == [("3", "invalid_logits", "the model's logits for the next token are not finite")]
    assert output.request_ids == [name for name in names if name != "3"]
    driver.sequences["3"].num_output = 1
    driver.released.append("3")
    outputs = driver.run_all()
    assert outputs.pop("3") == expected.pop("3")[:1]
    assert outputs == expected


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_prompt_whose_logits_are_not_finite_fails_alone(
    new_driver: NewDriver, fake_model: FakeDecoder, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    expected = alone(new_driver)["1"]
    driver = new_driver()
    driver.add("bad", [1, 2, 3, 4, 5], SamplingSpec(temperature=0.0, prompt_logprobs=1), 4)
    driver.add("1", PROMPTS[1], SPECS[1], 11)
    compute_logits = type(fake_model).compute_logits

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        monkeypatch.undo()
        logits: torch.Tensor = compute_logits(fake_model, hidden)
        logits[1] = torch.nan
        return logits

    monkeypatch.setattr(fake_model, "compute_logits", poisoned)
    output = driver.run({"bad": chunk, "1": 100})
    assert driver.failed == [
        ("bad", "invalid_logits", "the model's logits for a token of the prompt are not finite")
    ]
    assert output.prompt_logprobs == []
    del driver.sequences["bad"]
    driver.released.append("bad")
    assert driver.run_all() == {"1": expected}


def test_rows_of_one_token_come_first_and_only_needed_logits_are_computed(
    new_driver: NewDriver, fake_model: FakeDecoder
) -> None:
    driver = new_driver()
    for name, length in (("long", 9), ("short", 1), ("chunk", 8)):
        driver.add(name, list(range(length)), SamplingSpec(temperature=0.0), 4)
    output = driver.run({"long": 9, "short": 1, "chunk": 5})
    assert output.request_ids == ["long", "short"]
    (batch,) = fake_model.batches
    assert (batch.num_decodes, batch.query_lens, batch.seq_lens) == (1, [1, 9, 5], [1, 9, 5])
    assert batch.logits_indices.tolist() == [9, 0]
    assert batch.block_tables.shape == (3, 3)
    assert fake_model.heads == [2]


def test_a_plan_without_rows_releases_and_answers(new_driver: NewDriver, fake_model: FakeDecoder) -> None:
    driver = filled(new_driver())
    driver.run(dict.fromkeys(driver.sequences, 2))
    num_forwards = len(fake_model.batches)
    driver.released = list(driver.sequences)
    output = driver.run({})
    assert (output.request_ids, output.token_ids, output.failed) == ([], [], [])
    assert driver.runner.input_batch.num_rows == 0
    assert len(fake_model.batches) == num_forwards


def test_moments_are_in_order(new_driver: NewDriver) -> None:
    driver = new_driver()
    driver.add("a", [1, 2], SamplingSpec(), 1)
    (moments,) = driver.run({"a": 2}).moments
    assert moments.rank == 0
    assert list(moments[1:]) == sorted(moments[1:])


def test_sampling_after_a_failed_forward_is_an_error(
    new_driver: NewDriver, fake_model: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = new_driver()
    driver.add("a", [1, 2], SamplingSpec(temperature=0.0), 2)
    monkeypatch.setattr(fake_model, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driver.run({"a": 2})
    with pytest.raises(RuntimeError, match="step 1 did not finish"):
        driver.runner.sample_tokens(None)
    monkeypatch.undo()
    driver.runner.execute_model(StepPlan(2, [], [], [], [], [], [], ["a"]))
    driver.runner.sample_tokens(None)
    driver.sequences["a"].is_held = False
    driver.sequences["a"].computed = 0
    assert len(driver.run_all()["a"]) == 2
