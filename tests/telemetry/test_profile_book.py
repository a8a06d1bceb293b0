"""What is known of a profile by what its processes have recorded."""

import pytest

from vllm_obs.telemetry import profile_book
from vllm_obs.telemetry.profile_book import ProfileBook
from vllm_obs.telemetry.records import FrameDropped, ProcessExited, ProfileBegun, ProfileEnded
from vllm_obs.telemetry.view import Source

S = 1_000_000_000
SOURCE = Source("EngineCore_DP0", 10, 1, "0")


def begun(role: str = "Worker_TP0", pid: int = 10, profile: str = "p", at: int = S) -> ProfileBegun:
    return ProfileBegun(profile, "operators", role, pid, 0, 100, 5.0, at)


def ended(role: str = "Worker_TP0", pid: int = 10, profile: str = "p", error: str = "") -> ProfileEnded:
    return ProfileEnded(profile, "operators", role, pid, 0, 7, 0, 2 * S, 3 * S, ["a.json"], error)


def book_of(*records: ProfileBegun | ProfileEnded | FrameDropped) -> ProfileBook:
    book = ProfileBook()
    for record in records:
        book.record(SOURCE, record)
    return book


def test_it_runs_until_every_process_has_written() -> None:
    book = book_of(begun(), begun("Worker_TP1", 11), ended(), FrameDropped("x", "y", 1))
    profile = book.profiles["p"]
    assert profile.state(2 * S) == "running"
    assert book.under_way(2 * S) is profile
    book.record(SOURCE, ended("Worker_TP1", 11))
    assert (profile.state(2 * S), profile.is_over) == ("written", True)
    assert book.under_way(2 * S) is None
    assert profile.shown(2 * S) == {
        "profile": "p",
        "kind": "operators",
        "state": "written",
        "begun_at": S,
        "max_seconds": 5.0,
        "max_steps": 100,
        "parts": [
            {
                "role": f"Worker_TP{rank}",
                "pid": 10 + rank,
                "num_steps": 7,
                "num_samples": 0,
                "ended_at": 2 * S,
                "written_at": 3 * S,
                "error": "",
            }
            for rank in (0, 1)
        ],
    }


def test_with_an_engine_the_parts_of_its_workers_have_ended() -> None:
    book = book_of(begun(), begun("EngineCore_DP0", 9), begun("APIServer_0", 5))
    book.record(SOURCE, ProcessExited("Observer", 4, -9, 2 * S))
    assert book.under_way(2 * S) is not None
    book.record(SOURCE, ProcessExited("EngineCore_DP0", 9, -9, 2 * S))
    profile = book.profiles["p"]
    assert profile.errors == ["its process ended first"] * 2
    assert not profile.is_over
    book.record(SOURCE, ended("APIServer_0", 5))
    assert profile.state(2 * S) == "written"


def test_one_that_all_refuse_has_failed_and_one_that_some_refuse_has_not() -> None:
    refused = ended("APIServer_0", 5, error="409 busy")
    assert book_of(refused).profiles["p"].state(S) == "failed"
    assert book_of(begun(), ended(), refused).profiles["p"].state(S) == "written"


def test_a_process_that_is_gone_is_not_waited_for_for_ever() -> None:
    profile = book_of(begun()).profiles["p"]
    assert profile.state(S + int((5 + profile_book.LOST_SECONDS) * S)) == "running"
    assert profile.state(S + int((5 + profile_book.LOST_SECONDS) * S) + 1) == "lost"
    assert book_of(begun()).under_way(1000 * S) is None


def test_profiles_and_processes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_book, "MAX_PARTS", 2)
    book = book_of(*(begun(profile=f"p{number}") for number in range(profile_book.MAX_PROFILES + 5)))
    assert len(book.profiles) == profile_book.MAX_PROFILES
    assert "p0" not in book.profiles
    for pid in range(20, 25):
        book.record(SOURCE, begun(pid=pid, profile="p9"))
    assert [pid for _, pid in book.profiles["p9"].parts] == [10, 20]


def test_the_workers_of_another_engine_go_on() -> None:
    book = book_of(begun("Worker_DP0_TP0_PP0", 11), begun("Worker_DP1_TP0_PP0", 12))
    book.record(SOURCE, ProcessExited("EngineCore_DP0", 9, -9, 2 * S))
    ended_parts = [role for (role, _), part in book.profiles["p"].parts.items() if part.ended]
    assert ended_parts == ["Worker_DP0_TP0_PP0"]
