"""Which request a crash is laid at the door of, and for how long it is refused then."""

import pytest

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend import poison_book
from vllm_obs.engine.frontend.poison_book import KEPT_SECONDS, OpenRequest, PoisonBook
from vllm_obs.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, stop="secret word")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(token: int, num_output_tokens: int = 0, params: SamplingParams = GREEDY) -> OpenRequest:
    return OpenRequest(f"r{token}", [token, 5], params, num_output_tokens)


def refused(book: PoisonBook, *tokens: int, params: SamplingParams = GREEDY) -> list[int]:
    return [token for token in tokens if is_refused(book, token, params)]


def is_refused(book: PoisonBook, token: int, params: SamplingParams) -> bool:
    try:
        book.check([token, 5], params)
    except RequestFailedError as error:
        return error.reason == "poison_request"
    return False


def test_the_only_request_that_was_open_is_refused_when_it_comes_again() -> None:
    book = PoisonBook()
    assert book.crashed([request(1, num_output_tokens=9)]) == ["r1"]
    assert refused(book, 1, 2) == [1]
    assert refused(book, 1, params=SamplingParams(temperature=0.5)) == [], "with other parameters it is another"


def test_the_sequences_of_one_request_count_as_one() -> None:
    book = PoisonBook()
    assert book.crashed([request(1), request(1, 3)]) == ["r1", "r1"]


def test_the_only_one_without_output_is_refused_and_the_others_are_not_suspected() -> None:
    book = PoisonBook()
    assert book.crashed([request(1, 4), request(2), request(3, 7)]) == ["r2"]
    assert book.crashed([request(1, 4), request(4), request(3, 7)]) == ["r4"]
    assert refused(book, 1, 2, 3, 4) == [2, 4]


def test_where_nobody_stands_out_whoever_was_open_in_two_crashes_is_refused() -> None:
    book = PoisonBook()
    assert book.crashed([request(1), request(2), request(3, 1)]) == []
    assert refused(book, 1, 2, 3) == []
    assert book.crashed([request(2), request(4), request(5, 1)]) == ["r2"]
    assert refused(book, 1, 2, 3, 4, 5) == [2]


def test_a_crash_with_nothing_open_blames_nobody() -> None:
    book = PoisonBook()
    assert book.crashed([]) == []
    assert len(book) == 0


def test_it_is_forgotten_after_some_minutes() -> None:
    clock = Clock()
    book = PoisonBook(clock)
    book.crashed([request(1)])
    clock.now = KEPT_SECONDS - 1
    book.crashed([request(2)])
    clock.now = KEPT_SECONDS + 1
    assert refused(book, 1, 2) == [2]
    assert len(book) == 1


def test_it_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_MARKS", 3)
    book = PoisonBook()
    for token in range(5):
        book.crashed([request(token)])
    assert refused(book, *range(5)) == [2, 3, 4]


def test_among_too_many_nobody_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_OPEN", 2)
    book = PoisonBook()
    assert book.crashed([request(1), request(2, 1), request(3, 1)]) == []
    assert book.crashed([request(3, 1), request(4, 1), request(5)]) == []
    assert len(book) == 4, "only the last ones are looked at"


def test_it_keeps_digests_and_no_text() -> None:
    book = PoisonBook()
    book.crashed([request(1)])
    assert "secret word" not in repr(vars(book))
