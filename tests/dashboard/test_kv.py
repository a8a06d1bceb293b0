"""The KV cache page has the Observer's figures, live and after a step, and tells why a request found so much."""

from typing import Any

from fact_stream import FactStream
from inspector_pages import shown, texts
from observer_states import Answers, KeptSource, answers_of
from streamlit.testing.v1 import AppTest
from synthetic_run import feed

from vllm_obs.dashboard.figures import number, share
from vllm_obs.dashboard.kv_levels import level_parts, turnover_words
from vllm_obs.dashboard.kv_request import STOPPED_WORDS, sharing_words
from vllm_obs.telemetry.block_summary import block_summary
from vllm_obs.telemetry.cache_trend import CacheTrend
from vllm_obs.telemetry.inspect_block import request_cache


def answers() -> Answers:
    """A saturated server's, with the blocks of two sequences: `b` shares two blocks of `a`; 64 blocks of 4."""
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=10)
    stream.step({"a": 10})
    stream.submit("b", num_prompt_tokens=9)
    stream.step({"b": 1}, cached={"b": 8})
    state, trend = feed(stream.facts), CacheTrend()
    for source, record in stream.facts:
        trend.record(source, record)
    return answers_of("saturated") | {
        "/inspect/blocks/summary": block_summary(state, "0", None, stream.now),
        "/inspect/blocks/summary&engine=0&step=1": block_summary(state, "0", 1, stream.now),
        "/inspect/blocks/trend": trend.columns("0", stream.now + 2 * 10**9, 5),
        "/inspect/requests/b/cache": request_cache(state, "b", None),
        "/inspect/requests/a/cache&step=1": request_cache(state, "a", 1),
    }


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def html(page: AppTest) -> str:
    return "\n".join(str(each.proto.body) for each in page.get("html"))


def test_figures_are_the_observers() -> None:
    found = answers()
    page = shown("kv", KeptSource(found))
    assert not page.exception
    values, last = metrics(page), found["/inspect/blocks/trend"]["last_minute"]
    assert values["Saved by sharing"] == "2"
    assert values["Empty room in held blocks"] == share(5 / 16)
    assert values["Prompt tokens found, 1 min"] == share(8 / 19)
    assert values["Blocks handed out, 1 min"] == number(last["num_allocated"]) == "4"
    assert values["Blocks evicted, 1 min"] == "0"
    assert "64 blocks of 4, 256 tokens" in html(page)
    assert "active 4 (6.2 %)" in html(page)
    assert "2 requests hold blocks. There is room for 240 more tokens, 240 of them without evicting." in html(page)


def test_holders_are_listed_with_whom_they_share() -> None:
    found = answers()
    page = shown("kv", KeptSource(found))
    columns = {str(name): list(values) for name, values in page.dataframe[0].value.items()}
    ages = [row["age_seconds"] for row in found["/inspect/blocks/summary"]["holders"]]
    assert columns == {
        "request": ["a", "b"],
        "blocks": [3, 3],
        "share": [3 / 64, 3 / 64],
        "tokens": [10, 9],
        "empty": [2, 3],
        "shared": [2, 2],
        "with": ["b", "a"],
        "age": ages,
    }


def test_step_in_the_address_is_what_is_shown() -> None:
    page = shown("kv", KeptSource(answers()), step="1", request="a")
    assert "after step 1" in html(page)
    assert metrics(page)["Saved by sharing"] == "0"
    assert list(page.dataframe[0].value["request"]) == ["a"]
    assert "It holds 3 blocks with 10 tokens." in texts(page)


def test_followed_request_is_told_why_it_found_so_much_and_with_whom_it_shares() -> None:
    read = texts(shown("kv", KeptSource(answers()), request="b")).replace("\\", "")
    assert "**Prefix cache: 2 of 2 blocks found** :green-badge[all found]" in read
    assert "2 blocks (8 tokens) of the 2 that could be were found in the prefix cache, made by `a`." in read
    assert "It shares 2 blocks (67 %) with `a` (2)." in read
    assert "/requests?request=b" in read


def test_without_a_request_it_is_told_how_to_choose_one() -> None:
    assert "**No request is followed.** Click a block" in texts(shown("kv", KeptSource(answers())))


def test_request_that_nobody_knows_is_refused_in_words() -> None:
    found = answers() | {
        "/inspect/requests/x/cache": {"error": {"message": "no request of the last minutes", "code": 404}}
    }
    page = shown("kv", KeptSource(found), request="x")
    assert not page.exception
    assert "no request of the last minutes" in texts(page)


def test_before_there_is_an_engine_it_is_told_what_will_be_here() -> None:
    page = shown("kv", KeptSource(answers_of("loading")))
    assert "No engine has made its KV cache yet" in texts(page)


def test_engine_that_is_not_there_is_replaced_and_its_step_forgotten() -> None:
    page = shown("kv", KeptSource(answers()), engine="7", step="1")
    assert page.query_params["engine"] in ("0", ["0"])
    assert "step" not in page.query_params


def test_levels_of_no_blocks_have_no_share() -> None:
    assert [part.words for part in level_parts({})] == ["active 0 (–)", "cached 0 (–)", "free 0 (–)"]


def test_turnover_is_told_in_seconds_of_what_is_cached() -> None:
    summary = {"levels": {"num_cached": 300}}
    assert turnover_words({"num_evicted": 120}, summary).endswith("last about 150 s at that rate.")
    assert turnover_words({"num_evicted": 0}, summary).startswith("Nothing was evicted")
    assert turnover_words({"num_evicted": None}, summary) == "Nothing was planned in the last minute."


def test_every_reason_has_a_word_and_a_colour() -> None:
    from vllm_obs.telemetry import prefix_words

    described = (prefix_words.prefix_document.__doc__ or "").replace("\n", " ")
    assert all(reason in described for reason in STOPPED_WORDS)


def test_ended_request_shares_nothing() -> None:
    row: dict[str, Any] = {"is_held": False, "num_refs": [2, 2]}
    assert sharing_words(row) == "It shares none of them."
