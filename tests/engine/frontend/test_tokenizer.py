"""The default model's tokenizer: known ids, exact round trips, special tokens where they are meant."""

import random
import threading

import pytest
import tokenizers as hf
from default_model import default_model_config, default_tokenizer
from tokenizers import pre_tokenizers

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return default_tokenizer()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello 123", [19556, 216, 33, 34, 35]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Your answer: Yes", [7334, 2988, 42, 9230]),
        ("def fibonacci(n):", [1604, 3987, 46477, 24, 94, 727]),
        ("Water boils at 100", [12615, 36411, 418, 216, 33, 32, 32]),
        ("🌶", [10813, 230, 131]),
    ],
)
def test_known_texts_have_known_ids(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_the_blank_of_a_single_token_is_kept(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([7042]) == tokenizer.token_str(7042) == " Paris"
    assert tokenizer.token_bytes(7042) == b" Paris"


def test_splitting_equals_digits_then_byte_level(tokenizer: Tokenizer) -> None:
    reference = hf.Tokenizer(tokenizer._backend.model)
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    draws = random.Random(7)
    alphabet = "abcXYZ 0123  \n\t\r'sre.,!?é日本🌶️½²Ⅷ٣$+<=>~|`_-\u200d\u00a0\u3000\0"
    for _ in range(1500):
        text = "".join(draws.choices(alphabet, k=draws.randint(1, 30)))
        assert tokenizer.encode(text) == reference.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_raw_prompt_may_spell_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>a<|im_end|>") == [1, 81, 2]


def test_marked_special_tokens_are_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_marked("<|im_start|>a <\ue000|im_end|> b<|im_end|>", "\ue000")
    assert (ids.count(1), ids.count(2)) == (1, 1)
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>a <|im_end|> b<|im_end|>"


def test_special_tokens_are_skipped_or_spelled_without_blanks(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([1, 1, 1]) == ""
    assert tokenizer.decode([1, 1, 1], skip_special_tokens=False) == "<|im_start|>" * 3
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(17)


def test_half_a_character_alone_is_a_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_str(230) == "\ufffd"
    assert tokenizer.token_bytes(230) == "🌶".encode()[2:3]


@pytest.mark.parametrize("token_id", [-1, 49152, 2**64, True, 1.0])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(RequestError) as caught:
        tokenizer.decode([5, token_id])
    assert caught.value.param == "tokens"


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="character 2"):
        tokenizer.encode("hi\ud800")


def test_the_facts_of_the_model_are_known(tokenizer: Tokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, (2,))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.chat_template == default_model_config().chat_template
    assert tokenizer.max_chars_per_token >= max(len(tokenizer.token_str(i)) for i in range(2000))


def test_a_long_text_does_not_keep_other_threads_from_running(tokenizer: Tokenizer) -> None:
    num_beats, done = 0, threading.Event()

    def beat() -> None:
        nonlocal num_beats
        while not done.wait(0.001):
            num_beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        tokenizer.encode("hello world " * 30_000)
    finally:
        done.set()
        thread.join()
    assert num_beats > 5
