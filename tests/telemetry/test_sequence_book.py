"""A ledger closes when everything about its sequence has come, or when nothing more will."""

from itertools import permutations

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream
from recording_view import RecordingView

from vllm_obs.telemetry.records import HttpRequestEnded, Record, RequestEnded, RequestReleased, RequestSubmitted
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.sequence_book import (
    HTTP_GRACE_NS,
    MAX_API_SERVERS,
    MAX_HELD_TOKENS,
    RELEASE_GRACE_NS,
    UNTAKEN_GRACE_NS,
)
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone


def run_of(facts: list[tuple[Source, Record]]) -> tuple[RunState, RecordingView]:
    state, view = RunState(), RecordingView()
    state.add_view(view)
    for source, record in facts:
        state.apply(source, record)
    return state, view


def a_stream() -> FactStream:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    return stream


def closed_ids(view: RecordingView) -> list[str]:
    return [ledger.request_id for ledger in view.closed]


@pytest.mark.parametrize("order", list(permutations((RequestEnded, RequestReleased, HttpRequestEnded))))
def test_it_closes_when_ending_release_and_reply_have_come_in_any_order(order: tuple[type, ...]) -> None:
    stream = a_stream()
    state, view = run_of(stream.facts)
    last = {type(record): (source, record) for source, record in stream.finish("r-0")}
    for kind in order:
        assert closed_ids(view) == []
        state.apply(*last[kind])
    assert (closed_ids(view), list(state.sequences)) == (["r-0"], [])
    assert [interval.stage for interval in view.closed[0].intervals][-3:] == ["return", "detokenize", "deliver"]


def test_a_sequence_without_an_http_request_needs_none() -> None:
    stream = FactStream()
    stream.submit(http_id="")
    stream.step(["r-0"])
    stream.finish("r-0")
    _, view = run_of(stream.facts)
    assert [(ledger.request_id, ledger.intervals[-1].stage) for ledger in view.closed] == [("r-0", "detokenize")]


def test_all_sequences_of_a_request_are_delivered_together() -> None:
    stream = FactStream()
    stream.describe()
    for index in range(2):
        stream.submit(f"r-{index}", http_id="http", sequence_index=index, num_sequences=2)
    stream.step(["r-0", "r-1"])
    stream.release("r-0")
    stream.end("r-0")
    state, view = run_of(stream.facts)
    state.tick(stream.now + 1000 * RELEASE_GRACE_NS)
    assert closed_ids(view) == []
    rest = [*stream.step(["r-1"]), *stream.release("r-1"), *stream.end("r-1"), *stream.end_http("http")]
    for source, record in rest:
        state.apply(source, record)
    assert closed_ids(view) == ["r-0", "r-1"]
    assert {ledger.ended_at for ledger in view.closed} == {stream.now}
    assert state.find("http") == view.closed[::-1]


def test_a_client_that_left_before_its_sequence_was_ended_does_not_shorten_it() -> None:
    stream = a_stream()
    left_at = stream.pass_time(1000)
    stream.release("r-0", "abort")
    stream.end("r-0", "abort")
    stream.end_http("http-r-0", 499, ended_at=left_at)
    state, view = run_of(stream.facts)
    ledger = view.closed[0]
    assert ledger.ended is not None
    assert (ledger.ended_at, ledger.intervals[-1].stage) == (ledger.ended.ended_at, "decode")
    assert state.invariants.num_broken == 0


def test_a_sequence_that_was_never_taken_closes_after_a_second() -> None:
    stream = FactStream()
    stream.submit(is_taken=False)
    stream.abort("r-0")
    state, view = run_of(stream.facts)
    state.tick(stream.now + UNTAKEN_GRACE_NS)
    assert closed_ids(view) == []
    state.tick(stream.now + UNTAKEN_GRACE_NS + 1)
    assert [(ledger.is_complete, ledger.intervals[-2].stage) for ledger in view.closed] == [(True, "submit")]


def test_a_core_that_takes_it_afterwards_changes_nothing() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit(is_taken=False)
    stream.end("r-0", "abort")
    stream.end_http("http-r-0", 499)
    state, view = run_of(stream.facts)
    state.tick(stream.now + UNTAKEN_GRACE_NS + 1)
    intervals = list(view.closed[0].intervals)
    for fact in (*stream.take("r-0"), *stream.step(["r-0"]), *stream.release("r-0", "abort"), *stream.step()):
        state.apply(*fact)
    assert (view.closed[0].intervals, closed_ids(view), view.gaps) == (intervals, ["r-0"], {})
    assert (state.engines["0"].num_running, state.invariants.num_broken) == (0, 0)


def test_one_that_the_core_refused_closes_with_the_next_drain() -> None:
    stream = FactStream()
    stream.submit(is_taken=False)
    stream.end("r-0", "error", taken_at=stream.pass_time(1000))
    stream.end_http("http-r-0", 400)
    state, view = run_of(stream.facts)
    state.tick(stream.now + 1)
    assert closed_ids(view) == ["r-0"]


def test_a_release_that_does_not_come_is_not_waited_for_forever() -> None:
    stream = a_stream()
    stream.end("r-0")
    stream.end_http("http-r-0")
    state, view = run_of(stream.facts)
    state.tick(stream.now + RELEASE_GRACE_NS)
    assert closed_ids(view) == []
    state.tick(stream.now + RELEASE_GRACE_NS + 1)
    assert [(ledger.request_id, ledger.is_partial) for ledger in view.closed] == [("r-0", True)]


def test_a_slow_client_is_waited_for() -> None:
    stream = a_stream()
    stream.release("r-0")
    stream.end("r-0")
    state, view = run_of(stream.facts)
    state.tick(stream.now + HTTP_GRACE_NS)
    assert closed_ids(view) == []
    stream.pass_time(60 * 10**9)
    state.apply(*stream.end_http("http-r-0")[0])
    assert view.closed[0].stage_ns()["deliver"] > 60 * 10**9
    assert view.closed[0].is_complete


def test_sequences_of_a_dead_api_server_close_as_they_are() -> None:
    stream = a_stream()
    stream.submit("r-1")
    stream.end("r-0", "stop")
    state, view = run_of(stream.facts)
    state.apply(API_SERVER, SourceGone())
    assert [(ledger.request_id, ledger.is_abandoned, ledger.ended is None) for ledger in view.closed] == [
        ("r-0", False, False),
        ("r-1", True, True),
    ]
    assert (state.book.num_submitted, state.book.num_ended, state.book.num_abandoned) == (2, 1, 1)
    state.tick(stream.now)
    assert state.invariants.num_broken == 0


def test_records_that_an_api_server_lost_make_its_sequences_partial() -> None:
    stream = a_stream()
    state, view = run_of(stream.facts)
    state.apply(API_SERVER, RecordsLost(3))
    for fact in stream.finish("r-0"):
        state.apply(*fact)
    assert [ledger.is_partial for ledger in view.closed] == [True]
    assert view.losses == [("APIServer_0", 3)]


def test_sequences_that_come_after_a_loss_are_whole_again() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("during", is_taken=False)
    state, view = run_of(stream.facts)
    for source in (API_SERVER, ENGINE):
        state.apply(source, RecordsLost(3))
    stream.submit("after", is_taken=False)
    for fact in (*stream.facts[-1:], *stream.step(), *stream.take("after"), *stream.take("during")):
        state.apply(*fact)
    rest = [*stream.step(["during", "after"]), *stream.finish("during"), *stream.finish("after")]
    for fact in rest:
        state.apply(*fact)
    assert [(ledger.request_id, ledger.is_partial) for ledger in view.closed] == [
        ("during", True),
        ("after", False),
    ]
    assert state.invariants.num_broken == 0


def test_an_ending_that_was_lost_is_not_waited_for_forever() -> None:
    stream = a_stream()
    state, view = run_of(stream.facts)
    state.apply(API_SERVER, RecordsLost(1))
    state.apply(*stream.release("r-0")[0])
    state.tick(stream.now + RELEASE_GRACE_NS)
    assert closed_ids(view) == []
    state.tick(stream.now + RELEASE_GRACE_NS + 1)
    assert [(ledger.is_partial, ledger.ended) for ledger in view.closed] == [(True, None)]
    assert state.invariants.num_broken == 0


def test_one_of_which_all_that_came_last_was_lost_is_not_live_for_ever() -> None:
    stream = a_stream()
    state, view = run_of(stream.facts)
    stream.finish("r-0")
    del stream.sequences["r-0"]
    stream.pass_time(RELEASE_GRACE_NS)
    state.apply(API_SERVER, RecordsLost(2))
    state.apply(ENGINE, RecordsLost(1))
    for source, record in [*stream.submit("r-1"), *stream.step(["r-1"])]:
        state.apply(source, record)
    state.tick(stream.now + RELEASE_GRACE_NS // 2)
    assert set(state.sequences) == {"r-0", "r-1"}
    state.tick(stream.now + 2 * RELEASE_GRACE_NS)
    assert set(state.sequences) == {"r-1"}
    assert [(ledger.request_id, ledger.ended, ledger.is_partial) for ledger in view.closed] == [
        ("r-0", None, True)
    ]


def test_what_the_core_says_first_is_kept_until_the_submission_comes() -> None:
    stream = a_stream()
    submission = next(fact for fact in stream.facts if isinstance(fact[1], RequestSubmitted))
    state, view = run_of([fact for fact in stream.facts if fact is not submission])
    assert (list(state.sequences), list(state.book.orphans), view.gaps) == ([], ["r-0"], {})
    assert state.engines["0"].num_running == 1
    state.apply(*submission)
    assert (list(state.sequences), list(state.book.orphans), view.gaps) == (["r-0"], [], {"r-0": [None]})
    assert [interval.stage for interval in state.sequences["r-0"].intervals] == [
        "receive",
        "render",
        "tokenize",
        "submit",
        "queue",
        "prefill",
    ]


@pytest.mark.parametrize("loss", [[(ENGINE, SourceGone())], [(ENGINE, RecordsLost(3))]])
def test_who_was_never_submitted_and_left_unheard_is_not_kept_for_ever(loss: list[tuple[Source, Fact]]) -> None:
    """Its submission was lost, and its release with the engine or with a later loss."""
    stream = a_stream()
    state, _ = run_of([fact for fact in stream.facts if not isinstance(fact[1], RequestSubmitted)])
    assert list(state.book.orphans) == ["r-0"]
    for source, fact in loss:
        state.apply(source, fact)
    del stream.sequences["r-0"]
    if not isinstance(loss[0][1], SourceGone):
        stream.submit("r-1")
        for source, record in stream.step(["r-1"]):
            state.apply(source, record)
    state.tick(stream.now + RELEASE_GRACE_NS // 2)
    assert "r-0" in state.book.orphans
    state.tick(stream.now + 2 * RELEASE_GRACE_NS)
    assert "r-0" not in state.book.orphans
    assert state.book.loose_ends().without_core == set()


def test_tokens_held_for_a_submission_are_bounded() -> None:
    stream = FactStream()
    stream.submit()
    state, view = run_of(stream.facts[1:])
    ledger = state.book.orphans["r-0"]
    for number in range(MAX_HELD_TOKENS + 100):
        state.book.tokens([ledger], number, number)
    state.apply(*stream.facts[0])
    assert len(view.gaps["r-0"]) == MAX_HELD_TOKENS


def test_live_sequences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.telemetry.sequence_book.MAX_LIVE_SEQUENCES", 3)
    stream = FactStream()
    for index in range(5):
        stream.submit(f"r-{index}", is_taken=False)
    state, view = run_of(stream.facts)
    assert (list(state.sequences), closed_ids(view)) == (["r-2", "r-3", "r-4"], ["r-0", "r-1"])
    late = FactStream(now=stream.now)
    for index in range(5):
        late.submit(f"o-{index}")
    for fact in late.of(ENGINE):
        state.apply(*fact)
    assert list(state.book.orphans) == ["o-2", "o-3", "o-4"]


def test_api_servers_are_bounded() -> None:
    state = RunState()
    for generation in range(MAX_API_SERVERS + 1):
        stream = FactStream(api=API_SERVER._replace(generation=generation))
        state.apply(*stream.submit(f"r-{generation}", is_taken=False)[0])
    first, last = state.sequences["r-0"], state.sequences[f"r-{MAX_API_SERVERS}"]
    assert state.book.api_of(first) is None
    assert state.book.api_of(last) == API_SERVER._replace(generation=MAX_API_SERVERS)
    assert len(state.state().loose_ends.apis) == MAX_API_SERVERS
    state.apply(API_SERVER._replace(generation=MAX_API_SERVERS), SourceGone())
    assert len(state.state().loose_ends.apis) == MAX_API_SERVERS - 1


def test_a_plain_id_is_known_whether_it_lives_has_ended_or_was_told_by_the_core_alone() -> None:
    stream = FactStream()
    stream.describe()
    for request_id in ("lives", "ended", "orphan"):
        stream.submit(request_id)
    stream.step(["lives", "ended", "orphan"])
    stream.finish("ended")
    state = RunState()
    for source, fact in stream.facts:
        if not (isinstance(fact, RequestSubmitted) and fact.request_id == "orphan"):
            state.apply(source, fact)
    book = state.book
    assert [book.known(name) for name in ("lives", "ended", "orphan", "nobody")] == [
        book.live["lives"],
        book.ended.get("ended"),
        book.orphans["orphan"],
        None,
    ]
