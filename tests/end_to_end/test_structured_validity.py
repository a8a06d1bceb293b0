"""What a grammar made is valid whenever it ended by itself, and nobody beside it notices."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
from random_schemas import random_schema

from vllm_obs import LLM, SamplingParams, StructuredOutputsParams

NUM_SCHEMAS = [12, pytest.param(200, marks=pytest.mark.long)]
NEIGHBOURS = [f"Once upon a time there were {number} birds" for number in range(8)]
PLAIN = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", max_model_len=1024, max_num_seqs=32, kv_cache_memory_bytes=1 << 29) as llm:
        yield llm


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_schemas", NUM_SCHEMAS)
def test_every_document_is_valid_and_plain_neighbours_keep_their_tokens(llm: LLM, num_schemas: int) -> None:
    alone = [output.outputs[0].token_ids for output in llm.generate(NEIGHBOURS, PLAIN, use_tqdm=False)]
    schemas = [random_schema(seed) for seed in range(num_schemas)]
    prompts = [f"A JSON document for the schema {json.dumps(schema)}:\n" for schema in schemas]
    params = [
        SamplingParams(
            temperature=0.0 if seed % 2 else 1.0,
            seed=seed,
            max_tokens=12 if seed % 8 == 0 else 200,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for seed, schema in enumerate(schemas)
    ]
    outputs = llm.generate([*NEIGHBOURS, *prompts], [PLAIN] * len(NEIGHBOURS) + params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs[: len(NEIGHBOURS)]] == alone
    num_whole = 0
    for schema, output in zip(schemas, outputs[len(NEIGHBOURS) :], strict=True):
        sequence = output.outputs[0]
        if sequence.finish_reason == "stop":
            jsonschema.validate(json.loads(sequence.text), schema)
            num_whole += 1
        else:
            assert sequence.finish_reason == "length"
    assert num_whole > num_schemas / 2
