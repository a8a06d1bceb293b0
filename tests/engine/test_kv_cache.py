"""The KV cache manager: slots for tokens, prefix hits, and what may be shared with whom."""

from fake_executor import make_request

from vllm_obs.engine.block_hash import block_hash
from vllm_obs.engine.kv_cache import KVCacheManager
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.request import Request

BLOCK_SIZE = 4


def manager(num_blocks: int = 8, enable_prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching)


def sequence(prompt: list[int], request_id: str = "a", **fields: object) -> Request:
    return Request(make_request(request_id, prompt, **fields), (0, 0), 64)


def compute(kv: KVCacheManager, request: Request) -> list[int]:
    """Run the whole known sequence as one answered step, and return the hits it began with."""
    hits = kv.get_computed_blocks(request)
    assert kv.allocate_slots(request, request.num_tokens - len(hits) * BLOCK_SIZE, hits) is not None
    kv.cache_blocks(request, request.num_tokens)
    return hits


def test_slots_grow_by_whole_blocks_as_tokens_need_them() -> None:
    kv, request = manager(), sequence(list(range(5)))
    assert kv.allocate_slots(request, 5) == [0, 1]
    request.num_computed_tokens = 5
    assert kv.allocate_slots(request, 3) == []
    assert kv.allocate_slots(request, 4) == [2]
    assert request.block_ids == [0, 1, 2]
    assert request.num_slots == 12
    assert kv.usage == 3 / 8


def test_without_room_nothing_changes() -> None:
    kv, request = manager(num_blocks=2), sequence(list(range(9)))
    assert kv.allocate_slots(request, 9) is None
    assert request.block_ids == []
    assert kv.pool.num_free == 2


def test_an_equal_prefix_is_found_in_whole_blocks() -> None:
    kv = manager()
    first = sequence([*range(10)])
    assert compute(kv, first) == []

    other = sequence([*range(8), 99, 98], "b")
    assert compute(kv, other) == first.block_ids[:2]
    assert other.block_ids[:2] == first.block_ids[:2]
    kv.check([first.block_ids, other.block_ids])


def test_the_last_prompt_token_is_always_computed() -> None:
    kv = manager()
    first = sequence([*range(8)])
    compute(kv, first)
    assert kv.get_computed_blocks(sequence([*range(8)], "b")) == first.block_ids[:1]
    assert kv.get_computed_blocks(sequence([*range(9)], "c")) == first.block_ids[:2]


def test_a_block_is_equal_only_after_equal_parents() -> None:
    kv = manager()
    compute(kv, sequence([0, 0, 0, 0, 1, 2, 3, 4]))
    assert kv.get_computed_blocks(sequence([9, 9, 9, 9, 1, 2, 3, 4, 5], "b")) == []


def test_a_cache_salt_separates_tenants() -> None:
    kv = manager()
    ours = sequence([*range(9)], cache_salt="ours")
    compute(kv, ours)
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == []
    assert kv.get_computed_blocks(sequence([*range(9)], "c", cache_salt="theirs")) == []
    assert kv.get_computed_blocks(sequence([*range(9)], "d", cache_salt="ours")) == ours.block_ids[:2]


def test_blocks_are_shared_only_when_the_step_that_fills_them_has_answered() -> None:
    kv, first = manager(), sequence([*range(9)])
    kv.allocate_slots(first, 9)
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == []
    kv.cache_blocks(first, 7)
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == first.block_ids[:1]


def test_hits_survive_the_end_of_their_sequence_until_their_blocks_are_needed() -> None:
    kv, first = manager(num_blocks=4), sequence([*range(9)])
    compute(kv, first)
    blocks = list(first.block_ids)
    kv.free(first)
    assert kv.pool.num_active == 0
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == blocks[:2]

    kv.allocate_slots(sequence([7] * 12, "c"), 12)
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == blocks[:1], "the tail was evicted"


def test_hits_are_not_evicted_by_the_allocation_that_uses_them() -> None:
    kv, first = manager(num_blocks=3), sequence([*range(8)])
    compute(kv, first)
    kv.free(first)

    second = sequence([*range(12)], "b")
    hits = compute(kv, second)
    assert len(hits) == 2
    assert len(set(second.block_ids)) == 3
    kv.check([second.block_ids])


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    kv, first = manager(enable_prefix_caching=False), sequence([*range(9)])
    compute(kv, first)
    assert first.block_hashes == []
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == []


def test_prompt_log_probabilities_need_every_position_computed() -> None:
    kv = manager()
    compute(kv, sequence([*range(9)]))
    asking = sequence([*range(9)], "b", sampling=SamplingSpec(prompt_logprobs=1))
    assert kv.get_computed_blocks(asking) == []


def test_the_cache_is_not_reset_while_a_sequence_uses_it() -> None:
    kv, first = manager(), sequence([*range(9)])
    compute(kv, first)
    assert kv.reset_prefix_cache() is False
    kv.free(first)
    assert kv.reset_prefix_cache() is True
    assert kv.get_computed_blocks(sequence([*range(9)], "b")) == []


def test_hashes_are_computed_once_and_only_as_far_as_asked() -> None:
    request = sequence([*range(20)])
    second = block_hash(request, 1, BLOCK_SIZE)
    assert len(request.block_hashes) == 2
    assert block_hash(request, 1, BLOCK_SIZE) is second
    assert len({block_hash(request, index, BLOCK_SIZE) for index in range(5)}) == 5


def test_events_tell_who_got_and_gave_which_blocks_once() -> None:
    kv, first = manager(num_blocks=4), sequence([*range(5)])
    compute(kv, first)
    kv.free(first)
    events = kv.take_events()
    assert events.allocated == [("a", [0, 1], 0)]
    assert events.freed == [("a", [0, 1])]
    assert events.cached == [(0, first.block_hashes[0])]
    assert events.evicted == []
    assert kv.take_events() == ([], [], [], [])
