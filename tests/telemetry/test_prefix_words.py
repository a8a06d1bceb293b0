"""What a request found in the prefix cache is told with who made it, and why it was not more."""

from typing import Any

from fact_stream import ENGINE, FactStream
from synthetic_run import feed

from vllm_obs.telemetry.inspect_block import request_cache
from vllm_obs.telemetry.records import BlocksCached, BlocksChanged


def told(stream: FactStream, request_id: str) -> dict[str, Any]:
    (row,) = request_cache(feed(stream.facts), request_id, None)["sequences"]
    prefix: dict[str, Any] = row["prefix"]
    return prefix


def stream_with(num_prompt_tokens: int, cached: int, is_described: bool = True) -> FactStream:
    """`a` has computed 12 tokens, three blocks; then `b` comes."""
    stream = FactStream()
    if is_described:
        stream.describe()
    stream.submit("a", num_prompt_tokens=12)
    stream.step({"a": 12})
    stream.submit("b", num_prompt_tokens=num_prompt_tokens)
    stream.step({"b": num_prompt_tokens - cached}, cached={"b": cached})
    return stream


def test_all_that_could_be_found() -> None:
    assert told(stream_with(10, 8), "b") == {
        "num_hit_blocks": 2,
        "num_findable_blocks": 2,
        "step": 2,
        "makers": [{"request_id": "a", "first_block": 0, "num_blocks": 2, "first_step": 1}],
        "stopped": "all_found",
        "says": "2 blocks (8 tokens) of the 2 that could be were found in the prefix cache, made by `a`. "
        "The last 2 tokens only partly fill a block, and such blocks are never shared.",
    }


def test_last_full_block_is_computed_all_the_same() -> None:
    prefix = told(stream_with(12, 8), "b")
    assert prefix["stopped"] == "all_found"
    assert prefix["says"].endswith("because the last token's logits are wanted.")


def test_new_content_is_where_the_maker_goes_on_otherwise() -> None:
    prefix = told(stream_with(20, 8), "b")
    assert (prefix["num_hit_blocks"], prefix["num_findable_blocks"], prefix["stopped"]) == (2, 4, "never_seen")
    assert prefix["says"].endswith(
        "It stopped at block 3 (tokens 9 to 12): nobody had made that block; `a` goes on otherwise from there, "
        "or ends."
    )


def test_nothing_found_of_new_content() -> None:
    prefix = told(stream_with(20, 0), "b")
    assert (prefix["num_hit_blocks"], prefix["stopped"]) == (0, "never_seen")
    assert "its first 4 tokens are new, or its cache salt is another" in prefix["says"]


def test_short_prompt_fills_no_block() -> None:
    prefix = told(stream_with(3, 0), "b")
    assert (prefix["stopped"], prefix["num_findable_blocks"]) == ("too_short", 0)


def test_evicted_content_is_named_with_its_maker_and_the_step() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=8)
    stream.step({"a": 8})
    stream.finish("a")
    content = (1).to_bytes(8, "big")
    stream.write(ENGINE, BlocksCached(2, [0], [content], True))
    stream.submit("b", num_prompt_tokens=8)
    stream.write(ENGINE, BlocksChanged(4, ["b"], [[0, 1]], [[]], [0]), BlocksCached(4, [0], [content], False))
    prefix = told(stream, "b")
    assert prefix["stopped"] == "evicted"
    assert prefix["says"] == (
        "Nothing of it was found in the prefix cache. It stopped at block 1 (tokens 1 to 4): `a` had made it in "
        "step 1, and it was evicted in step 2, 2 steps before, to make room."
    )


def test_block_that_is_not_computed_yet_and_one_that_another_made_meanwhile() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("b", num_prompt_tokens=20)
    stream.step({"b": 2})
    assert told(stream, "b")["stopped"] == "not_computed_yet"
    stream = FactStream()
    stream.describe()
    stream.submit("b", num_prompt_tokens=20)
    stream.step({"b": 20})
    stream.facts = [fact for fact in stream.facts if not isinstance(fact[1], BlocksCached)]
    assert told(stream, "b")["stopped"] == "computed_at_once"


def test_request_that_waits_and_an_engine_without_a_cache() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("waits")
    (row,) = request_cache(feed(stream.facts), "waits", None)["sequences"]
    assert row["prefix"]["stopped"] == "not_admitted"
    off = stream_with(20, 0, is_described=False)
    off.describe(enable_prefix_caching=False)
    assert told(off, "b")["stopped"] == "disabled"
