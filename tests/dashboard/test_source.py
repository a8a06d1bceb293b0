"""The source asks once for all, keeps little, looks for the Observer now and then, and sees another run."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from vllm_obs.dashboard import source as module
from vllm_obs.dashboard.header import NEWS_SECONDS, replaced_words
from vllm_obs.dashboard.source import MAX_ANSWERS, MAX_KEPT_BYTES, STATE_PATH, UNWANTED_SECONDS, Replaced, Source
from vllm_obs.telemetry.inspect_client import Fetched, Inspector, InspectorError

URL, OTHER_URL = "http://127.0.0.1:9", "http://127.0.0.1:10"


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Observers:
    """What answers where: address → its run; what is at no address does not answer."""

    def __init__(self) -> None:
        self.runs = {URL: "first"}
        self.asked: list[str] = []
        self.num_bytes = 10

    def fetch(self, inspector: Inspector, path: str, **query: Any) -> Fetched:
        self.asked.append(f"{inspector.url}{path}")
        if inspector.url not in self.runs:
            raise InspectorError(f"the inspector at {inspector.url} does not answer")
        return Fetched({"run": self.runs[inspector.url], "path": path, **query}, self.num_bytes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> Observers:
    made = Observers()
    monkeypatch.setattr(Inspector, "fetch", lambda *given, **query: made.fetch(*given, **query))
    return made


class Places:
    """Locates; counts how often it was asked."""

    def __init__(self, *places: str | InspectorError) -> None:
        self.places, self.num_asked = list(places), 0

    def __call__(self) -> str:
        self.num_asked += 1
        place = self.places[0] if len(self.places) == 1 else self.places.pop(0)
        if isinstance(place, InspectorError):
            raise place
        return place


def at(place: str) -> Callable[[], str]:
    return lambda: place


def test_that_there_is_no_run_is_believed_for_a_while(clock: Clock, observers: Observers) -> None:
    places = Places(InspectorError("no live run is known"))
    source = Source(places)
    readings = [source.get(f"/inspect/{name}") for name in range(20)]
    assert {(reading.trouble, reading.status) for reading in readings} == {("no live run is known", 0)}
    assert places.num_asked == 1
    clock.now += 2.1
    source.get("/inspect/state")
    assert (places.num_asked, observers.asked) == (2, [])


def test_only_one_looks_while_others_wait_for_what_it_finds(observers: Observers) -> None:
    may_go, calls = threading.Event(), []

    def locate() -> str:
        calls.append(1)
        assert may_go.wait(10)
        return URL

    source = Source(locate)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(source.get, f"/inspect/{number}") for number in range(8)]
        assert source.url == "", "nobody holds up who only wants to know what is known"
        may_go.set()
        assert [each.result(10).trouble for each in waiting] == [""] * 8
    assert len(calls) == 1


def test_pages_follow_to_another_run_and_say_so(clock: Clock, observers: Observers) -> None:
    source = Source(Places(URL, OTHER_URL))
    assert source.get(STATE_PATH).content["run"] == "first"
    source.get("/inspect/steps")
    assert not source.replaced
    observers.runs = {OTHER_URL: "second"}
    clock.now += 3
    assert source.get(STATE_PATH).content["run"] == "second"
    assert (source.url, source.replaced) == (OTHER_URL, Replaced("first", clock.now))
    observers.runs = {}
    assert not source.get("/inspect/steps").is_there, "what is kept of the run before is not shown as this one's"
    clock.now += 0.5
    assert source.get(STATE_PATH).content["run"] == "second"


def test_another_run_at_the_same_address_is_seen(clock: Clock, observers: Observers) -> None:
    source = Source(at(URL))
    source.get(STATE_PATH)
    observers.runs[URL] = "second"
    clock.now += 1
    source.get(STATE_PATH)
    assert source.replaced == Replaced("first", clock.now)


def test_header_says_that_it_is_another_run_for_some_minutes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_obs.dashboard.header.time", clock)
    assert replaced_words(None) == ""
    assert replaced_words(Replaced("a_b", clock.now - 3)) == (
        " · :orange[this is another run since 3.00 s; a\\_b was before it]"
    )
    assert replaced_words(Replaced("a_b", clock.now - NEWS_SECONDS)) == ""


def test_observer_that_is_gone_is_looked_for_at_once(clock: Clock, observers: Observers) -> None:
    places = Places(URL, OTHER_URL)
    source = Source(places)
    observers.runs = {OTHER_URL: "second"}
    assert source.get("/inspect/steps").is_gone
    assert source.get("/inspect/steps").content["run"] == "second"
    assert places.num_asked == 2


def test_known_one_is_asked_though_it_was_too_slow_to_say_of_which_run_it_is(
    clock: Clock, observers: Observers
) -> None:
    source = Source(Places(URL, InspectorError("the Observer does not answer (yet)")))
    source.get("/inspect/steps")
    clock.now += 3
    assert source.get("/inspect/steps") == (
        {"run": "first", "path": "/inspect/steps"}, 0.0, "", 200,
    )  # fmt: skip


def test_kept_answers_are_shown_with_their_age_while_it_is_away(clock: Clock, observers: Observers) -> None:
    source = Source(at(URL))
    source.get("/inspect/steps")
    observers.runs = {}
    clock.now += 7
    reading = source.get("/inspect/steps")
    assert (reading.content["path"], reading.age_seconds, reading.is_gone) == ("/inspect/steps", 7.0, True)


def kept(source: Source, clock: Clock, observers: Observers, paths: list[str]) -> list[str]:
    """Which of these it still has when nobody answers; asking for them does not keep them longer."""
    runs, observers.runs = observers.runs, {}
    clock.now += 1
    found = [path for path in paths if source._kept.get(f"{path}?{{}}") is not None and source.get(path).is_there]
    observers.runs = runs
    return found


def test_kept_answers_are_bounded_by_number(clock: Clock, observers: Observers) -> None:
    source = Source(at(URL))
    paths = [f"/inspect/{number}" for number in range(MAX_ANSWERS + 3)]
    for path in paths:
        source.get(path)
    assert kept(source, clock, observers, paths) == paths[3:]


def test_kept_answers_are_bounded_by_bytes_and_what_was_wanted_last_stays(
    clock: Clock, observers: Observers
) -> None:
    source = Source(at(URL))
    observers.num_bytes = MAX_KEPT_BYTES // 4
    paths = [f"/inspect/{number}" for number in range(4)]
    for path in paths:
        source.get(path)
    source.get(paths[0])  # fresh, and wanted again
    source.get("/inspect/more")
    assert kept(source, clock, observers, [*paths, "/inspect/more"]) == [paths[0], *paths[2:], "/inspect/more"]
    observers.num_bytes = MAX_KEPT_BYTES + 1
    source.get("/inspect/huge")
    assert kept(source, clock, observers, [*paths, "/inspect/more", "/inspect/huge"]) == []
    assert source._num_kept_bytes == 0


def test_answer_that_grows_is_counted_once(clock: Clock, observers: Observers) -> None:
    source = Source(at(URL))
    for num_bytes in (5, 700, 30):
        observers.num_bytes = num_bytes
        source.get("/inspect/steps")
        clock.now += 1
    assert source._num_kept_bytes == 30


def test_what_nobody_asked_for_in_five_minutes_goes(clock: Clock, observers: Observers) -> None:
    source = Source(at(URL))
    source.get("/inspect/old")
    source.get("/inspect/used")
    clock.now += UNWANTED_SECONDS - 1
    source.get("/inspect/used")
    clock.now += 2
    source.get("/inspect/new")
    assert kept(source, clock, observers, ["/inspect/old", "/inspect/used", "/inspect/new"]) == [
        "/inspect/used", "/inspect/new",
    ]  # fmt: skip
