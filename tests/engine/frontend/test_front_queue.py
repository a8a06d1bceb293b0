"""What a front end knows of the engine's queue: never less than the engine, and told as soon as it is less."""

import logging
import tracemalloc

import pytest
from step_outputs import Row, step_outputs

from vllm_obs.engine.errors import OverloadedError, RequestError
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.messages import SchedulerStats
from vllm_obs.engine.queue_bound import QueueLimits

LIMITS = QueueLimits(
    max_num_reqs=2,
    max_num_tokens=None,
    max_num_seqs=1,
    max_num_batched_tokens=100,
    max_num_mixed_prefill_tokens=100,
    is_chunked=True,
    block_size=10,
)
S = 1_000_000_000


class Front:
    """A queue, and the sequences that its front end has open."""

    def __init__(self, limits: QueueLimits = LIMITS) -> None:
        self.now = 0
        self.open: set[str] = set()
        self.queue = FrontQueue(limits, lambda: len(self.open), lambda: self.now)
        self.queue.attach(1000)

    def send(self, *request_ids: str, num_tokens: int = 5) -> None:
        self.queue.admit(list(request_ids), num_tokens, is_held=False)
        self.open.update(request_ids)

    def begin(self, request_id: str) -> None:
        """Its first token comes."""
        self.queue.saw(step_outputs(Row(request_id, [1], timing=(1, 2))))

    def refusal(self, *request_ids: str, num_tokens: int = 5) -> OverloadedError:
        with pytest.raises(OverloadedError) as caught:
            self.send(*request_ids, num_tokens=num_tokens)
        return caught.value


@pytest.fixture
def front() -> Front:
    """One runs, and two wait."""
    made = Front()
    made.send("a", "b", "c")
    made.begin("a")
    return made


def test_more_than_run_and_wait_are_refused(front: Front) -> None:
    refusal = front.refusal("d")
    assert str(refusal) == "2 sequences wait to be run; at most 2 may"
    assert refusal.reason == "overloaded"
    assert len(front.queue) == 2
    assert front.queue.fill == 1.0


def test_those_that_the_next_step_takes_are_not_told_as_waiting() -> None:
    front = Front(LIMITS._replace(max_num_seqs=4))
    front.send(*"abcdef")
    assert str(front.refusal("g")) == "2 sequences wait to be run; at most 2 may"
    told = "with this request 4 sequences would wait to be run; at most 2 may"
    assert str(front.refusal("g", "h")) == told
    with pytest.raises(OverloadedError, match=told):
        front.queue.place().grow_to(2)


def test_the_log_tells_once_that_requests_are_refused_and_once_that_it_is_over(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vllm_obs.engine.frontend.refusal_notice")
    for number in range(32):
        front.now = number * S
        front.refusal("d")
    front.now += 10 * S
    front.queue.tell_relief()  # it is full still
    front.open.discard("a")
    front.begin("b")
    front.queue.tell_relief()
    front.queue.tell_relief()
    front.send("d")
    front.refusal("e")
    front.begin("c")
    front.now += 9 * S
    front.queue.tell_relief()  # it may be full again at any moment
    front.queue.clear()
    full = "the queue is full (2 sequences wait to be run; at most 2 may): new requests are refused"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", full),
        ("INFO", "the queue refuses no more; 32 request(s) were refused in 31.0 s"),
        ("WARNING", full),
        ("INFO", "the queue refuses no more; 1 request(s) were refused in 0.0 s"),
    ]


def test_room_is_there_when_the_engine_tells_of_a_first_step(front: Front) -> None:
    front.open.discard("a")
    front.begin("b")
    front.send("d")
    front.refusal("e")


def test_a_prompt_of_many_steps_leaves_the_queue_with_its_first() -> None:
    front = Front()
    front.send("a", num_tokens=500)
    front.queue.saw(step_outputs()._replace(scheduled_ids=["a"]))
    assert len(front.queue) == 0
    front.send("b", "c")
    front.refusal("d")
    front.begin("a")
    front.refusal("d")


def test_who_was_refused_by_the_engine_is_not_waiting(front: Front) -> None:
    front.queue.saw(step_outputs(Row("b", [], 3, error=("overloaded", "full"))))
    assert len(front.queue) == 1


def test_who_is_aborted_makes_room_when_the_engine_has_been_told(front: Front) -> None:
    front.open.discard("b")
    front.queue.leaving(["b"])
    front.refusal("d")
    front.queue.left(["b"])
    front.send("d")


def test_a_running_one_that_is_aborted_keeps_its_slot_until_then() -> None:
    front = Front()
    front.send("a")
    front.begin("a")
    front.open.discard("a")
    front.queue.leaving(["a"])
    front.send("b", "c")
    front.refusal("d")
    front.queue.left(["a"])
    front.send("d")


def test_room_is_kept_before_the_tokens_are_known() -> None:
    front = Front()
    places = [front.queue.place() for _ in range(4)]
    for place in places[:3]:
        place.grow_to(1)
    with pytest.raises(OverloadedError):
        places[3].grow_to(1)
    with pytest.raises(OverloadedError):
        places[3].look()
    places[0].spend(1)
    front.send("a")
    places[1].close()
    places[1].close()
    places[3].grow_to(1)
    places[2].spend(1)
    front.send("b")
    with pytest.raises(OverloadedError):
        places[3].grow_to(2)
    places[3].close()


def test_more_than_ever_fit_can_never_succeed() -> None:
    place = Front().queue.place()
    with pytest.raises(RequestError, match="4 sequences; at most 1 run and 2 wait") as caught:
        place.grow_to(4)
    assert caught.value.reason == "too_many_sequences"
    place.grow_to(3)


def test_tokens_are_refused_by_their_own_word() -> None:
    front = Front(LIMITS._replace(max_num_tokens=50))
    front.send("a")
    front.begin("a")
    front.send("b", num_tokens=50)
    with pytest.raises(OverloadedError, match="50 prompt tokens wait to be run; at most 50 may"):
        front.queue.place().look()
    front.queue.saw(step_outputs(Row("b", [], 3, error=("overloaded", "full"))))
    front.send("b", num_tokens=40)
    refusal = front.refusal("c", num_tokens=20)
    assert (refusal.reason, str(refusal)) == (
        "too_many_queued_tokens",
        "with this request 60 prompt tokens would wait to be run; at most 50 may",
    )
    assert front.queue.fill == 0.8


def test_a_full_cache_lets_nobody_go_next() -> None:
    front = Front()
    stats = SchedulerStats(0, 0, 1.0, 0)
    front.queue.saw(step_outputs()._replace(stats=stats))
    assert front.queue.kv_cache_usage == 1.0
    front.send("a", "b")
    front.refusal("c")


def test_waiting_is_told_by_how_fast_the_queue_drains() -> None:
    front = Front(LIMITS._replace(max_num_reqs=100))
    for second in range(10):
        front.now = second * S
        front.send(str(second))
        front.begin(str(second))
    front.send(*(f"more {number}" for number in range(40)))
    front.now = 10 * S
    assert front.queue.retry_after_seconds == 40, "40 wait since a second ago, and one is taken to leave now"
    for number in range(20):
        front.now += S
        front.begin(f"more {number}")
    assert front.queue.retry_after_seconds == 19, "20 wait, and of nineteen seconds' twenty-one one leaves now"
    front.now = 100 * S
    assert front.queue.retry_after_seconds == 60
    assert Front().queue.retry_after_seconds == 1


def test_hours_in_which_nobody_waited_say_nothing_of_the_rate() -> None:
    front = Front(LIMITS._replace(max_num_reqs=100))
    for hour in (1, 2, 3):
        front.now = 3600 * hour * S
        front.send(*(f"{hour} {number}" for number in range(40)))
        front.now += S // 10
        assert front.queue.retry_after_seconds == 4
        for number in range(40):
            front.now += S // 10
            front.begin(f"{hour} {number}")
            assert front.queue.retry_after_seconds <= 4


def test_room_kept_for_many_costs_no_list_of_them() -> None:
    front = Front(LIMITS._replace(max_num_reqs=10_000_000))
    front.queue.place().grow_to(9_000_000)
    tracemalloc.start()
    try:
        front.send("a")
        front.queue.look(1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(OverloadedError):
        front.queue.look(1_000_001)


def test_without_bounds_nothing_is_counted_or_refused() -> None:
    front = Front(LIMITS._replace(max_num_reqs=None))
    front.send(*map(str, range(5000)))
    assert (len(front.queue), front.queue.fill) == (0, 0.0)


def test_a_dead_engine_has_no_queue(front: Front) -> None:
    front.queue.clear()
    front.open.clear()
    assert len(front.queue) == 0
    front.send("d", "e", "f")


def test_two_engines_have_twice_the_room_and_one_that_is_lost_takes_its_own_along(front: Front) -> None:
    front.queue.attach(1000, engine_index=1)
    assert front.queue.fill == 0.5, "two wait, and four may"
    front.send("d", "e", "f")
    front.refusal("g")
    front.queue.saw(step_outputs()._replace(engine_index=1, stats=SchedulerStats(1, 0, 0.5, 0)))
    assert front.queue.kv_cache_usage == 0.25
    lost = ["a", "d", "e", "f", "nobody"]
    front.open.difference_update(lost)
    front.queue.lost(lost)
    front.queue.detach(1)
    assert (len(front.queue), front.queue.kv_cache_usage) == (2, 0.0)
    front.send("h")
    front.refusal("i")
    front.queue.detach(0)
    front.refusal("i")
