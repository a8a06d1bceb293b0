"""Stop strings: the same text and the same stop however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.frontend.stop_strings import StopStrings

Cut = tuple[str, str | None]


def fed(pieces: list[str], stops: tuple[str, ...], include: bool = False, unsearched: int = 0) -> Cut:
    """Everything shown, and the stop; each feed is checked never to show more than the whole search allows."""
    finder = StopStrings(stops, include)
    shown = ""
    for position, piece in enumerate(pieces):
        shown += finder.feed(piece, searched=position >= unsearched)
        if finder.matched is not None:
            break
    return shown + finder.finish(), finder.matched


def searched_whole(text: str, stops: tuple[str, ...], include: bool = False, after: int = 0) -> Cut:
    """The first end of a stop string after so many characters; of several that end there, the longest."""
    for end in range(after + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


texts = st.text("ab<é🌶", max_size=24)
stop_lists = st.lists(st.text("ab<é🌶", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


@given(st.lists(texts, max_size=8), stop_lists, st.booleans())
@settings(max_examples=250, deadline=None)
def test_any_cut_gives_what_searching_the_whole_text_gives(
    pieces: list[str], stops: tuple[str, ...], include: bool
) -> None:
    assert fed(pieces, stops, include) == searched_whole("".join(pieces), stops, include)


@given(st.lists(texts, max_size=8), stop_lists, st.booleans(), st.integers(0, 8))
@settings(max_examples=150, deadline=None)
def test_unsearched_pieces_hold_no_end_of_a_stop(
    pieces: list[str], stops: tuple[str, ...], include: bool, unsearched: int
) -> None:
    after = len("".join(pieces[:unsearched]))
    expected = searched_whole("".join(pieces), stops, include, after)
    assert fed(pieces, stops, include, unsearched) == expected


@given(st.lists(texts, max_size=8), stop_lists)
@settings(max_examples=120, deadline=None)
def test_no_more_is_held_back_than_may_begin_a_stop(pieces: list[str], stops: tuple[str, ...]) -> None:
    finder, shown, whole = StopStrings(stops), "", ""
    for piece in pieces:
        shown, whole = shown + finder.feed(piece), whole + piece
        if finder.matched is not None:
            return
        held = whole[len(shown) :]
        assert whole.startswith(shown)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "include", "expected"),
    [
        (["ABC", " DEF", "GH"], ("DE",), False, ("ABC ", "DE")),
        (["ABC", " DEF", "GH"], ("DE",), True, ("ABC DE", "DE")),
        (["x wor", "ld hello"], ("hello", "world"), False, ("x ", "world")),
        (["abcd"], ("abcd", "bc"), False, ("a", "bc")),
        (["ab", "cd"], ("bcd", "cd"), False, ("a", "bcd")),
        (["aaab"], ("aab",), False, ("a", "aab")),
        (["never"], ("stop",), False, ("never", None)),
        (["almost sto"], ("stop",), False, ("almost sto", None)),
        (["no stops"], (), False, ("no stops", None)),
    ],
)
def test_known_cases(pieces: list[str], stops: tuple[str, ...], include: bool, expected: Cut) -> None:
    assert fed(pieces, stops, include) == expected


def test_a_begun_stop_string_is_held_back_until_it_is_none() -> None:
    finder = StopStrings(("stop",))
    assert [finder.feed(piece) for piece in ("a st", "o", "ne")] == ["a ", "", "stone"]


def test_with_include_nothing_is_held_back() -> None:
    finder = StopStrings(("stop",), include=True)
    assert [finder.feed(piece) for piece in ("a st", "o", "p more")] == ["a st", "o", "p"]


def test_nothing_comes_after_the_stop() -> None:
    finder = StopStrings(("x",))
    assert finder.feed("axb") == "a"
    assert finder.feed("more") == ""
    assert finder.finish() == ""
