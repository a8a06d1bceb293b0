"""The words of flags and what they mean."""

from collections.abc import Callable

import pytest

from vllm_obs.engine.flags import Flag, human_size, json_strings, number, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("1M", 1 << 20),
        ("1m", 1_000_000),
        ("2G", 2 << 30),
        ("25.6k", 25_600),
        ("0", 0),
    ],
)
def test_sizes_with_suffixes(text: str, value: int) -> None:
    assert human_size(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (human_size, "4x"),
        (human_size, "-1"),
        (human_size, "1.5"),
        (human_size, "1.5K"),
        (human_size, ""),
        (human_size, "9" * 400),
        (whole_number, "1.5"),
        (whole_number, "٣x"),
        (whole_number, "٣"),
        (whole_number, "1_0"),
        (human_size, "٣k"),
        (number, "٣"),
        (number, "1_0"),
        (whole_number, "9" * 400),
        (number, "nan"),
        (number, "inf"),
        (number, "hot"),
        (number, ""),
        (json_strings, "[1]"),
        (json_strings, "*"),
    ],
)
def test_words_that_mean_nothing(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse(text)


def test_numbers() -> None:
    assert [number(text) for text in ("0.9", "1", "-2.5e3", ".5")] == [0.9, 1.0, -2500.0, 0.5]
    assert whole_number("-12") == -12


def test_choices_are_checked_and_named() -> None:
    flag = Flag("dtype", "Model", "", choices=("a", "b"))
    assert flag.read("a") == "a"
    with pytest.raises(ValueError, match="'c' is not one of a, b"):
        flag.read("c")
    assert (flag.option, flag.placeholder) == ("--dtype", "{a,b}")
