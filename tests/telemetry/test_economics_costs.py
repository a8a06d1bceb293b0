"""The book of costs is bounded, and what it lets go of stays in the sums."""

import msgspec
import pytest
from fact_stream import FactStream

from vllm_obs.telemetry import economics_costs
from vllm_obs.telemetry.economics_costs import AccountTotals, CostBook
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import RequestSubmitted


def ledger_of(request_id: str, account: str) -> SequenceLedger:
    (_, submitted), *_ = FactStream().submit(request_id, is_taken=False, account=account)
    assert isinstance(submitted, RequestSubmitted)
    return SequenceLedger(submitted)


def test_accounts_beyond_the_bound_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(economics_costs, "MAX_ACCOUNTS", 3)
    book = CostBook(["key-1", "key-2"])
    for name in ("key-1", "key-2", "key-3", "key-4", "key-5"):
        book.submitted(name, name)
        book.add_steps(book.get(name), 10)
        book.finish(book.closed(ledger_of(name, name)))
    assert {name: totals.step_ns for name, totals in book.sums().items()} == {
        "key-1": 10,
        "key-2": 10,
        "key-3": 10,
        "other": 20,
    }


def test_live_and_ended_sequences_are_bounded_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(economics_costs, "MAX_LIVE", 4)
    monkeypatch.setattr(economics_costs, "MAX_OVER", 2)
    book = CostBook()
    for number in range(10):
        book.submitted(f"r-{number}", "a")
        book.add_steps(book.get(f"r-{number}"), 1)
    assert list(book.live) == ["r-6", "r-7", "r-8", "r-9"]
    assert list(book.over) == ["r-4", "r-5"]
    assert book.sums() == {"a": AccountTotals(step_ns=6)}
    assert book.find("r-0") is None


def test_a_sequence_whose_api_server_died_ended_with_an_error() -> None:
    book = CostBook()
    book.closed(ledger_of("r", ""))
    assert book.sums() == {"none": AccountTotals(num_prompt_tokens=10, requests={"error": 1})}


def test_the_last_that_are_over_outlive_the_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(economics_costs, "MAX_OVER_KEPT", 2)
    book = CostBook()
    for number in range(4):
        book.submitted(f"r-{number}", "a")
        book.add_steps(book.get(f"r-{number}"), 1)
        if number:
            book.finish(book.get(f"r-{number}"))
    resumed = CostBook()
    resumed.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(book.state())))
    assert (list(resumed.live), list(resumed.over)) == (["r-0"], ["r-2", "r-3"])
    assert resumed.over["r-3"] == book.over["r-3"]
    resumed.add_steps(resumed.get("r-3"), 5)  # what came after the checkpoint is read again
    assert resumed.sums() == {"a": AccountTotals(step_ns=8)}


def test_what_is_finished_twice_counts_once() -> None:
    book = CostBook()
    cost = book.get("r")
    book.add_steps(cost, 5)
    book.finish(cost)
    book.finish(cost)
    assert book.sums() == {"other": AccountTotals(step_ns=5)}
