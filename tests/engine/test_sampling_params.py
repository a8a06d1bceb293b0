"""Sampling parameters as they are kept, and as they are sent."""

from vllm_obs.engine.sampling_params import SamplingParams, to_spec


def test_greedy_switches_the_filters_off() -> None:
    spec = to_spec(SamplingParams(temperature=1e-6, top_p=0.5, top_k=7, min_p=0.1), 16, (2,))
    assert (spec.temperature, spec.top_p, spec.top_k, spec.min_p) == (0.0, 1.0, 0, 0.0)


def test_the_wire_form_is_plain_and_bounded() -> None:
    params = SamplingParams(
        top_k=-1, stop_token_ids=[5, 5, 3], logit_bias={9: 300, 4: -1.5}, allowed_token_ids=[1, 1], min_tokens=3
    )
    spec = to_spec(params, 16, (2,))
    assert spec.top_k == 0
    assert spec.stop_token_ids == (5, 3)
    assert spec.logit_bias == ((4, -1.5), (9, 100.0))
    assert spec.allowed_token_ids == (1,)
    assert (spec.max_tokens, spec.min_tokens, spec.eos_token_ids) == (16, 3, (2,))


def test_ignore_eos_leaves_no_end_token() -> None:
    assert to_spec(SamplingParams(ignore_eos=True), 16, (2,)).eos_token_ids == ()


def test_scoring_a_prompt_asks_the_core_for_no_tokens() -> None:
    assert to_spec(SamplingParams(max_tokens=0), 0, (2,)).max_tokens == 0


def test_seed_minus_one_is_no_seed() -> None:
    assert SamplingParams(seed=-1).seed is None
