"""The queue's bound: by number and by tokens, beside what the next step is sure to take."""

from vllm_obs.engine.queue_bound import QueueBound, QueueLimits, QueueLoad

LIMITS = QueueLimits(
    max_num_reqs=3,
    max_num_tokens=None,
    max_num_seqs=2,
    max_num_batched_tokens=100,
    max_num_mixed_prefill_tokens=100,
    is_chunked=True,
    block_size=10,
)
IDLE = QueueLoad(num_running=0, num_busy_tokens=0, num_free_blocks=1000)
FULL = QueueLoad(num_running=2, num_busy_tokens=2, num_free_blocks=1000)


def bound(*num_tokens: int, limits: QueueLimits = LIMITS) -> QueueBound:
    made = QueueBound(limits)
    for number, tokens in enumerate(num_tokens):
        made.add(str(number), tokens)
    return made


def num_more(queue: QueueBound, load: QueueLoad, num_tokens: int = 5) -> int:
    """How many more of that length are let in, one by one."""
    count = 0
    while queue.why_full([num_tokens], load) is None:
        queue.add(f"more {count}", num_tokens)
        count += 1
    return count


def test_a_full_engine_takes_as_many_as_may_wait() -> None:
    assert num_more(bound(), FULL) == 3
    assert num_more(bound(5), FULL) == 2
    assert bound(5, 5, 5).why_full([5], FULL) == "max_num_queued_reqs"


def test_an_idle_engine_takes_what_its_next_step_runs_besides() -> None:
    assert num_more(bound(), IDLE) == 3 + 2


def test_what_does_not_fit_the_next_step_waits() -> None:
    assert num_more(bound(), IDLE._replace(num_busy_tokens=100)) == 3
    assert num_more(bound(), IDLE, num_tokens=100) == 3 + 1
    assert num_more(bound(), IDLE, num_tokens=60) == 3 + 2, "the second one's prompt begins in the same step"
    assert num_more(bound(limits=LIMITS._replace(is_chunked=False)), IDLE, num_tokens=60) == 3 + 1
    assert num_more(bound(), IDLE._replace(num_free_blocks=1), num_tokens=10) == 3 + 1
    assert num_more(bound(), IDLE._replace(num_running=1, num_free_blocks=1)) == 3


def test_several_sequences_come_all_or_not_at_all() -> None:
    queue = bound(5)
    assert queue.why_full([5] * 2, FULL) is None
    assert queue.why_full([5] * 3, FULL) == "max_num_queued_reqs"
    assert len(queue) == 1


def test_tokens_have_a_bound_of_their_own() -> None:
    queue = bound(limits=LIMITS._replace(max_num_reqs=None, max_num_tokens=50))
    assert num_more(queue, FULL, num_tokens=20) == 2
    assert queue.num_tokens == 40
    assert queue.why_full([20], FULL) == "max_num_queued_tokens"
    assert queue.why_full([10], FULL) is None


def test_a_prompt_over_the_bound_on_tokens_is_taken_where_it_does_not_wait() -> None:
    queue = bound(limits=LIMITS._replace(max_num_tokens=50))
    assert queue.why_full([500], IDLE) is None
    assert queue.why_full([500], FULL) == "max_num_queued_tokens"


def test_nobody_waits_where_the_bound_is_zero() -> None:
    queue = bound(limits=LIMITS._replace(max_num_reqs=0))
    assert num_more(queue, IDLE) == 2
    assert num_more(bound(limits=LIMITS._replace(max_num_reqs=0)), FULL) == 0


def test_who_is_held_is_in_nobodys_next_step() -> None:
    queue = bound()
    queue.add("grammar", 5, is_held=True)
    assert num_more(queue, IDLE) == 2 + 2
    assert queue.remove("grammar") == 5
    assert queue.why_full([5], IDLE) is None


def test_who_leaves_makes_room_once() -> None:
    queue = bound(5, 7)
    assert (queue.remove("0"), queue.remove("0"), queue.remove("stranger")) == (5, None, None)
    assert (len(queue), queue.num_tokens) == (1, 7)
    queue.clear()
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_reserved_ones_come_behind_with_a_token_each() -> None:
    queue = bound(5, limits=LIMITS._replace(max_num_tokens=10))
    for num_reserved in range(6):
        ones = [5] + [1] * num_reserved
        for load in (IDLE, FULL, IDLE._replace(num_free_blocks=2)):
            assert queue.why_full([5], load, num_reserved) == queue.why_full(ones, load)
    assert queue.why_full([], FULL, 3) == "max_num_queued_reqs"
    assert queue.why_full([], FULL, 2) is None


def test_api_servers_of_one_engine_share_its_bounds() -> None:
    limits = LIMITS._replace(max_num_reqs=10, max_num_tokens=101, max_num_seqs=7)
    shared = limits.share_of(4)
    assert shared == limits._replace(
        max_num_reqs=3,
        max_num_tokens=26,
        max_num_seqs=2,
        max_num_batched_tokens=25,
        max_num_mixed_prefill_tokens=25,
    )
    assert limits.share_of(1) == limits
    assert LIMITS._replace(max_num_reqs=None).share_of(2).max_num_reqs is None


def test_beside_who_decodes_the_next_step_takes_a_share_of_prompt_tokens() -> None:
    limits = LIMITS._replace(max_num_reqs=0, max_num_seqs=8, max_num_mixed_prefill_tokens=10)
    decoding = QueueLoad(num_running=2, num_busy_tokens=2, num_free_blocks=1000)
    assert num_more(bound(limits=limits), decoding) == 2
    assert num_more(bound(limits=limits), decoding._replace(num_busy_tokens=12)) == 0
    assert num_more(bound(limits=limits._replace(is_chunked=False)), decoding) == 6
