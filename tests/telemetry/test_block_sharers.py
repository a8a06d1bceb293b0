"""Who shares blocks with whom is what a comparison of everybody with everybody finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.telemetry.block_sharers import MAX_SHARERS, NOTHING, BlockSharers, Shared

tables_of_few = st.dictionaries(
    st.sampled_from([f"r-{number}" for number in range(12)]), st.lists(st.integers(0, 15), unique=True), min_size=1
)


def compared(tables: dict[str, list[int]], request_id: str) -> Shared:
    mine = set(tables[request_id])
    others = [name for name, table in tables.items() if name != request_id and mine & set(table)]
    shared = {block_id for name in others for block_id in mine & set(tables[name])}
    return Shared(len(shared), len(others), others)


@settings(max_examples=200, deadline=None, database=None)
@given(tables_of_few)
def test_everybody_is_told_all_with_whom_it_shares(tables: dict[str, list[int]]) -> None:
    num_refs = [sum(block_id in table for table in tables.values()) for block_id in range(16)]
    sharers = BlockSharers(tables, num_refs, tables)
    for request_id in tables:
        found, wanted = sharers.of(request_id), compared(tables, request_id)
        assert found[:2] == wanted[:2]
        assert set(found.sharers) <= set(wanted.sharers)
        assert len(found.sharers) == min(MAX_SHARERS, wanted.num_sharers)


def test_of_many_the_first_are_named() -> None:
    tables = {f"r-{number}": [0, 1, 2, 10 + number] for number in range(40)}
    num_refs = [40, 40, 40] + [0] * 7 + [1] * 40
    sharers = BlockSharers(tables, num_refs, ["r-3"])
    names = [f"r-{number}" for number in range(9) if number != 3]
    assert sharers.of("r-3") == Shared(3, 39, names)
    assert BlockSharers(tables, num_refs, []).of("r-3") == NOTHING
