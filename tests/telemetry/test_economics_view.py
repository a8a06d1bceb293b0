"""The inspector's answer and the metrics by account say what was charged, and that it adds up."""

import pytest
from charged_core import ACCOUNTS, ChargedCore
from fact_stream import ENGINE, FactStream

from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_metrics import show_accounts
from vllm_obs.telemetry.economics_view import cost_fields, cost_sentences, economics_view
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import RecordsLost

NS = 1e9
STEP_NS = 1_055_000
HELD_NS = STEP_NS - 20_000


@pytest.fixture
def stream() -> FactStream:
    """One request that took a step for itself."""
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=10, account="key-1", external_id="mine")
    stream.step(["a"])
    stream.finish("a", "length")
    return stream


@pytest.fixture
def economics(stream: FactStream) -> Economics:
    state = RunState()
    economics = Economics(state.engines.get, ["key-1", "key-2"])
    state.add_view(economics)
    for source, record in stream.facts:
        state.apply(source, record)
    return economics


def test_whole_answer_of_one_request(economics: Economics, stream: FactStream) -> None:
    view = economics_view(economics, stream.now, "run")
    first_at = economics.windows.first_at
    block_ns = economics.book.over["a"].block_ns
    assert block_ns == 3 * (HELD_NS + 35_000)
    tokens = {"num_prompt_tokens": 10, "num_cached_tokens": 0}
    tokens |= {"num_generation_tokens": 1, "num_recomputed_tokens": 0}
    none = dict.fromkeys(tokens, 0)
    totals = {"step_seconds": STEP_NS / NS, "block_seconds": block_ns / NS, **tokens}
    assert view["window"] == {"name": "run", "begun_at": first_at, "seconds": (stream.now - first_at) / NS}
    assert view["totals"] == totals | {
        "num_requests": 1,
        "num_steps": 1,
        "num_failed_steps": 0,
        "num_wasted_rows": 0,
    }
    assert view["accounts"] == [
        {"account": "key-1", "step_share": 1.0, "block_share": 1.0, "num_requests": 1, "requests": {"length": 1}}
        | totals,
        {"account": "key-2", "step_seconds": 0.0, "block_seconds": 0.0, "step_share": 0.0, "block_share": 0.0}
        | none
        | {"num_requests": 0, "requests": {}},
    ]
    assert view["top"]["by_step_seconds"] == view["top"]["by_block_seconds"]
    assert view["top"]["by_step_seconds"] == [
        {
            "request_id": "a",
            "external_id": "mine",
            "account": "key-1",
            "engine": "0",
            "is_live": False,
            "step_seconds": STEP_NS / NS,
            "step_share": 1.0,
            "block_seconds": block_ns / NS,
        }
    ]
    assert view["check"]["step_time"] == {
        "charged_seconds": STEP_NS / NS,
        "whole_seconds": STEP_NS / NS,
        "ratio": 1.0,
    }
    assert view["check"]["blocks"]["ratio"] == 1.0
    assert (view["is_exact"], view["caveat"]) == (True, "")
    assert view["cost_models"] == {"0": {"step_tokens": 10.0, "context_tokens": 0.00512}}


def test_what_no_request_caused_is_counted_apart(economics: Economics, stream: FactStream) -> None:
    no_request = economics_view(economics, stream.now, "5m")["no_request"]
    assert no_request.pop("idle_seconds") > 0
    assert no_request == {"rowless_step_seconds": 0.0, "unknown_seconds": 0.0, "unknown_block_seconds": 0.0}


def test_a_window_without_anything_is_empty(economics: Economics, stream: FactStream) -> None:
    now = stream.now + 600 * 10**9
    economics.tick(now - 300 * 10**9)
    economics.tick(now)
    view = economics_view(economics, now, "1m")
    assert view["totals"]["step_seconds"] == view["totals"]["num_requests"] == 0
    assert view["top"] == {"by_step_seconds": [], "by_block_seconds": []}
    assert view["check"]["step_time"]["ratio"] == 1.0


def test_lost_records_are_told(economics: Economics, stream: FactStream) -> None:
    stream.step([])
    economics.lost(ENGINE, 7)
    view = economics_view(economics, stream.now, "run")
    assert (view["is_exact"], view["caveat"]) == (
        False,
        "7 records of engines were lost: 0 steps are charged to nobody, and blocks only as far as it is known who "
        "holds them.",
    )
    assert RecordsLost(7).num == economics.num_lost


def test_one_sequence_in_numbers_and_words(economics: Economics) -> None:
    cost = economics.book.over["a"]
    assert cost_fields(economics, "a") == {"step_seconds": STEP_NS / NS, "block_seconds": cost.block_ns / NS}
    assert cost_sentences(economics, "a") == [
        "It took 1.05 ms of the engine's step time (100 %) and held 0.00321 block-seconds."
    ]
    cost.block_ns = 210.4 * NS
    assert cost_sentences(economics, "a") == [
        "It took 1.05 ms of the engine's step time (100 %) and held 210 block-seconds."
    ]
    unknown = {"step_seconds": None, "block_seconds": None}
    assert cost_fields(economics, "nobody") == cost_fields(None, "a") == unknown
    assert cost_sentences(economics, "nobody") == cost_sentences(None, "a") == []


def test_metrics_by_account_never_go_back_and_sum_to_the_whole() -> None:
    core, store = ChargedCore(3), MetricStore(CATALOGUE)
    before: dict[str, float] = {}
    for _ in range(5):
        core.run(40)
        show_accounts(core.economics, store)
        family = store.families["vllm_obs_account_step_seconds_total"].series
        now = {account: series.number for (account,), series in family.items()}  # type: ignore[union-attr]
        assert all(now[account] >= seconds for account, seconds in before.items())
        before = now
    assert set(before) == set(ACCOUNTS)
    assert sum(before.values()) == pytest.approx(core.economics.engines["0"].totals.step_ns / NS)
    totals = core.economics.known_accounts()["key-1"]
    shown = {
        labels[1]: series.number  # type: ignore[union-attr]
        for labels, series in store.families["vllm_obs_account_tokens_total"].series.items()
        if labels[0] == "key-1"
    }
    assert shown == {
        "prompt": totals.num_prompt_tokens,
        "cached": totals.num_cached_tokens,
        "generation": totals.num_generation_tokens,
        "recomputed": totals.num_recomputed_tokens,
    }
    requests = store.families["vllm_obs_account_requests_total"].series
    assert {labels[1] for labels in requests} == {"length", "abort", "error"}
    blocks = store.value("vllm_obs_account_block_seconds_total", "key-1")
    assert blocks.number == totals.block_ns / NS
