"""Which request a crash is laid at the door of, and for how long it is refused then."""

from collections.abc import Callable

import pytest

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend import poison_book
from vllm_obs.engine.frontend.crash_suspects import Suspect, standing_out
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.poison_book import (
    KEPT_SECONDS,
    REST_SECONDS,
    OpenRequest,
    PoisonBook,
    SecondTry,
    fingerprint,
)
from vllm_obs.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, stop="secret word")


def told(book: PoisonBook) -> Callable[[list[Suspect]], None]:
    """Have another book hear of them."""
    return lambda suspects: book.heard([suspect.digest for suspect in suspects])


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(token: int, num_output_tokens: int = 0, may_run: bool = True) -> OpenRequest:
    return OpenRequest(f"r{token}", [token, 5], GREEDY, num_output_tokens, may_run)


def digest_of(token: int, params: SamplingParams = GREEDY) -> bytes:
    return fingerprint([token, 5], params)


def refused(book: PoisonBook, *tokens: int, params: SamplingParams = GREEDY) -> list[int]:
    return [token for token in tokens if is_refused(book, digest_of(token, params))]


def known(book: PoisonBook, *tokens: int) -> list[int]:
    """Those that were open in a crash and may run."""
    return [token for token in tokens if book.check(digest_of(token))]


def is_refused(book: PoisonBook, digest: bytes) -> bool:
    try:
        book.check(digest)
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


def test_the_only_one_without_output_is_refused_and_the_others_are_suspects() -> None:
    book = PoisonBook()
    assert book.crashed([request(1, 4), request(2), request(3, 7)]) == ["r2"]
    assert refused(book, 1, 2, 3) == [2]
    assert known(book, 1, 3, 4) == [1, 3]
    assert book.crashed([request(1, 4), request(4)]) == ["r1", "r4"], "the first one named may not have been it"


def test_one_that_waits_to_be_run_is_not_named() -> None:
    book = PoisonBook()
    assert book.crashed([request(1, 4), request(2, 9), request(3, may_run=False)]) == []
    assert book.crashed([request(4, 4), request(5, may_run=False)]) == ["r4"], "it ran alone"
    assert refused(book, 1, 2, 3, 4, 5) == [4]
    assert known(book, 1, 2, 3, 5) == [1, 2, 3, 5], "all the same it was open"


def test_where_nobody_stands_out_whoever_was_open_in_two_crashes_is_refused() -> None:
    book = PoisonBook()
    assert book.crashed([request(1), request(2), request(3, 1)]) == []
    assert refused(book, 1, 2, 3) == []
    assert book.crashed([request(2), request(4), request(5, 1)]) == ["r2"]
    assert refused(book, 1, 2, 3, 4, 5) == [2]


def test_one_that_stood_out_in_a_single_crash_is_tried_again_half_a_minute_after_it_came_again() -> None:
    clock = Clock()
    book = PoisonBook(clock)
    book.crashed([request(1)])
    clock.now = 200.0
    assert refused(book, 1) == [1], "however long the engine takes to load"
    clock.now = 200.0 + REST_SECONDS - 1
    assert refused(book, 1) == [1]
    clock.now = 200.0 + REST_SECONDS
    assert known(book, 1) == [1]
    assert book.crashed([request(1), request(2, 1), request(3, 2)]) == ["r1"]
    clock.now += 2 * REST_SECONDS
    assert refused(book, 1, 2) == [1], "two crashes are enough"


def delta(finish_reason: str | None) -> SequenceDelta:
    return SequenceDelta("r1-0", 0, finish_reason=finish_reason)


def test_what_ends_well_between_two_crashes_is_not_refused() -> None:
    book = PoisonBook()
    book.crashed([request(1), request(2)])
    passed_on: list[SequenceDelta] = []
    again = SecondTry(book, digest_of(1), 2, passed_on.append)
    deltas = [delta(None), delta("stop"), delta("length")]
    for one in deltas:
        assert known(book, 1) == [1], "until the last of its sequences has ended"
        again.put(one)
    assert passed_on == deltas
    assert known(book, 1, 2) == [2]
    assert book.crashed([request(1), request(2)]) == ["r2"]


def test_what_ends_otherwise_stays_suspected() -> None:
    book = PoisonBook()
    book.crashed([request(1), request(2)])
    again = SecondTry(book, digest_of(1), 2, lambda one: None)
    for reason in ("length", "abort"):
        again.put(delta(reason))
    assert known(book, 1) == [1]


def test_a_crash_with_nothing_open_blames_nobody() -> None:
    book = PoisonBook()
    assert book.crashed([]) == []
    assert len(book) == 0


def test_it_is_forgotten_after_some_minutes() -> None:
    clock = Clock()
    book = PoisonBook(clock)
    book.crashed([request(1)])
    book.crashed([request(3), request(4)])
    clock.now = KEPT_SECONDS - 1
    book.crashed([request(2)])
    clock.now = KEPT_SECONDS + 1
    assert refused(book, 1, 2) == [2]
    assert known(book, 3, 4) == []
    assert len(book) == 1


def test_it_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_MARKS", 3)
    book = PoisonBook()
    for token in range(5):
        book.crashed([request(token)])
    assert refused(book, *range(5)) == [2, 3, 4]


def test_many_suspects_push_out_nobody_who_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_MARKS", 3)
    book = PoisonBook()
    book.crashed([request(0)])
    assert book.crashed([request(token, 1) for token in range(1, 9)]) == []
    assert refused(book, 0) == [0]
    assert known(book, *range(1, 9)) == [6, 7, 8]


def test_among_too_many_nobody_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_OPEN", 2)
    book = PoisonBook()
    assert book.crashed([request(1), request(2, 1), request(3, 1)]) == []
    assert book.crashed([request(6, 1), request(4, 1), request(5)]) == []
    assert len(book) == 4, "only the last ones are looked at"


def test_among_too_many_of_one_server_nobody_stands_out_of_all_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_book, "MAX_OPEN", 2)
    book, heard = PoisonBook(), list[Suspect]()
    book.shared, book.on_crash = True, heard.extend
    book.crashed([request(1), request(2, 1), request(3)])
    assert len(heard) == 2
    assert standing_out(heard) is None


def test_it_keeps_digests_and_no_text() -> None:
    book = PoisonBook()
    book.crashed([request(1)])
    assert "secret word" not in repr(vars(book))


def test_of_several_servers_nobody_is_refused_before_a_second_crash_wherever_that_was() -> None:
    """Each knows only its own requests: that it had a single one says nothing."""
    clock = Clock()
    here, there = PoisonBook(clock), PoisonBook(clock)
    for book, other in ((here, there), (there, here)):
        book.shared, book.on_crash = True, told(other)
    assert here.crashed([request(1)]) == []
    assert (known(here, 1, 2), known(there, 1, 2)) == ([1], [1])
    clock.now += 5
    assert there.crashed([request(1), request(2)]) == ["r1"]
    assert (refused(here, 1, 2), refused(there, 1, 2)) == ([1], [1])


def test_what_several_servers_had_open_in_one_crash_was_open_in_one() -> None:
    clock = Clock()
    here, there = PoisonBook(clock), PoisonBook(clock)
    for book, other in ((here, there), (there, here)):
        book.shared, book.on_crash = True, told(other)
    here.crashed([request(1)])
    clock.now += 0.01
    there.crashed([request(1)])
    assert (known(here, 1), known(there, 1)) == ([1], [1])


def test_who_stands_out_of_what_several_servers_had_open_is_refused_by_all_after_one_crash() -> None:
    clock = Clock()
    here, there = PoisonBook(clock), PoisonBook(clock)
    for book, other in ((here, there), (there, here)):
        book.shared, book.on_crash = True, told(other)
    here.crashed([request(1)])
    there.crashed([request(2)])
    digest = fingerprint(request(1).token_ids, request(1).params)
    for book in (here, there):
        book.blame(digest)
        book.blame(b"of nobody that is known")
    assert (refused(here, 1, 2), refused(there, 1, 2)) == ([1], [1])
    clock.now += REST_SECONDS
    assert refused(here, 1, 2) == [], "it may have been there by chance"


@pytest.mark.parametrize(
    ("suspects", "found"),
    [
        ([], None),
        ([Suspect(b"a", True, False)], b"a"),
        ([Suspect(b"a", False, False)], None),
        ([Suspect(b"a", True, False), Suspect(b"b", False, False)], b"a"),
        ([Suspect(b"a", True, False), Suspect(b"b", True, True)], b"b"),
        ([Suspect(b"a", True, True), Suspect(b"b", True, True)], None),
    ],
)
def test_who_stands_out_is_alone_with_it(suspects: list[Suspect], found: bytes | None) -> None:
    assert standing_out(suspects) == found
