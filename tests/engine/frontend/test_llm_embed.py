"""LLM.embed and LLM.score over the default model: batched, chunked or cached, a prompt's vector is its own."""

from collections.abc import Iterator

import numpy as np
import pytest

from vllm_obs import LLM, SamplingParams
from vllm_obs.engine.errors import RequestError

PROMPTS = ["Hello", "The capital of France is Paris, " * 12, "x", " ".join(map(str, range(60)))]


@pytest.fixture(scope="module", params=["LAST", "MEAN"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 27,
        max_num_batched_tokens=64,
        pooler_config={"pooling_type": request.param},
    ) as llm:
        yield llm


def test_a_batch_in_chunks_equals_each_prompt_alone_to_the_bit_cached_or_not(llm: LLM) -> None:
    batch = llm.embed(PROMPTS, use_tqdm=False)
    alone = [llm.embed(prompt, use_tqdm=False)[0] for prompt in PROMPTS]
    assert [output.outputs for output in alone] == [output.outputs for output in batch]
    is_last = llm.llm_engine.config.model.pooling.kind == "last"
    assert [output.num_cached_tokens > 0 for output in alone] == [is_last and len(p) > 100 for p in PROMPTS]
    assert [output.num_cached_tokens for output in batch] == [0, 0, 0, 0]
    assert {output.outputs.hidden_size for output in batch} == {576}
    assert np.linalg.norm(batch[0].outputs.embedding) == pytest.approx(1, abs=1e-6)


def test_vectors_beside_generation_change_neither(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    (before,) = llm.generate("The sea is", params, use_tqdm=False)
    (vector,) = llm.embed("The sea is", use_tqdm=False, normalize=False)
    (after,) = llm.generate("The sea is", params, use_tqdm=False)
    assert before.outputs[0].token_ids == after.outputs[0].token_ids
    assert np.linalg.norm(vector.outputs.embedding) > 2


def test_scores_are_cosines_of_the_vectors(llm: LLM) -> None:
    vectors = [np.array(output.outputs.embedding) for output in llm.embed(PROMPTS[:3], use_tqdm=False)]
    one_for_all = llm.score(PROMPTS[0], PROMPTS[:3], use_tqdm=False)
    pairs = llm.score(PROMPTS[:3], PROMPTS[:3][::-1], use_tqdm=False)
    assert [score.outputs.score for score in one_for_all] == pytest.approx(
        [float(vectors[0] @ other) for other in vectors], abs=1e-5
    )
    assert pairs[1].outputs.score == pytest.approx(1)
    with pytest.raises(ValueError, match="2 queries and 3 documents"):
        llm.score(PROMPTS[:2], PROMPTS[:3])


def test_what_the_model_cannot_do_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="cannot be cut to 64"):
        llm.embed("Hello", dimensions=64)
    with pytest.raises(RequestError, match="512 tokens; the prompt has 513"):
        llm.embed([[50] * 513])
    assert llm.embed([[50] * 512], use_tqdm=False)[0].prompt_token_ids == [50] * 512
