"""The size of a model by its shape."""

from dataclasses import replace

from default_model import default_model_config

from vllm_obs.engine.model_size import model_size


def test_the_default_model_has_135_million_weights() -> None:
    size = model_size(default_model_config().architecture)
    assert size.num_weights == 134_479_872
    assert size.num_weights == size.num_multiplied
    assert size.flops_per_token == 2 * 134_479_872
    assert (size.weight_bytes("bfloat16"), size.weight_bytes("float32")) == (268_959_744, 537_919_488)


def test_an_embedding_of_its_own_multiplies_nothing() -> None:
    architecture = default_model_config().architecture
    tied, untied = (model_size(replace(architecture, tie_word_embeddings=tied)) for tied in (True, False))
    assert untied.num_multiplied == tied.num_multiplied
    assert untied.num_weights - tied.num_weights == architecture.vocab_size * architecture.hidden_size
