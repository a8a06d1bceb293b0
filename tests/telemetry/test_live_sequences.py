import pytest

from vllm_obs.telemetry import live_sequences, pending_steps, queue_metrics
from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.live_sequences import LiveSequence, LiveSequences
from vllm_obs.telemetry.loop_clock import SETTLED_NS, LoopClock
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.pending_steps import PendingSteps
from vllm_obs.telemetry.records import LoopSampled, StepPlanned
from vllm_obs.telemetry.view import Source


def planned(step: int, **rows: int) -> StepPlanned:
    num_rows = len(rows)
    return StepPlanned(
        step, 0, 0, list(rows), list(rows.values()), [0] * num_rows, [0] * num_rows, *([] for _ in range(6)),
        head_reason="", num_running=0, num_waiting=0, num_free_blocks=0, num_cached_blocks=0, num_active_blocks=0,
    )  # fmt: skip


def test_live_sequences_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sequences, "MAX_SEQUENCES", 3)
    live = LiveSequences()
    for number in range(5):
        live.add(LiveSequence(str(number), 1))
    assert [sequence.request_id for sequence in live] == ["2", "3", "4"]


def test_who_left_unseen_is_let_go_of() -> None:
    live = LiveSequences()
    for name in ("a", "b", "c"):
        live.add(LiveSequence(name, 1))
    live.keep_only({"b": None, "d": None})
    assert [sequence.request_id for sequence in live] == ["b"]


def test_slots_of_shared_blocks_are_filled_once() -> None:
    """Two sequences share a full block of 16 and have a second one each, with 3 and 5 tokens in it."""
    live = LiveSequences()
    for name, num_tokens in (("a", 19), ("b", 21)):
        live.add(LiveSequence(name, 30, num_computed_tokens=num_tokens, num_blocks=2))
    assert live.num_filled_slots(num_active_blocks=3, block_size=16) == 16 + 3 + 5


def test_pending_steps_have_a_bound_and_know_their_used_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_steps, "MAX_PENDING_STEPS", 2)
    pending = PendingSteps()
    for step in (1, 2, 3):
        pending.add(planned(step, a=4, b=5))
    pending.drop(["b", "z"])
    pending.add(planned(4, b=7))
    resumed = PendingSteps()
    resumed.restore(pending.state())
    found = {step: resumed.pop(step) for step in (1, 2, 3, 4)}
    assert {step: each.num_used_tokens for step, each in found.items() if each is not None} == {3: 4, 4: 7}


def test_queues_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_metrics, "MAX_SEQUENCES", 3)
    monkeypatch.setattr(queue_metrics, "MAX_SERVERS", 2)
    queues = queue_metrics.QueueMetrics(MetricStore(CATALOGUE))
    for number in range(5):
        queues.submitted(str(number), is_taken=False)
        queues.sampled(Source(f"APIServer_{number}", number, number, ""), LoopSampled(number, 0, 0.0, 1, 1, 1))
    assert queues.server_pids() == [3, 4]
    assert queues.state()[:2] == [["2", "3", "4"], ["2", "3", "4"]]


def test_overlapping_steps_are_busy_once() -> None:
    clock = LoopClock()
    clock.begin(100)
    clock.work_begins(150)
    clock.work_ends(200)
    clock.work_ends(260)
    clock.work_begins(300)
    clock.work_ends(310)
    assert (clock.busy_ns, clock.idle_ns) == (120, 90)


def test_a_look_never_takes_back_what_it_said() -> None:
    clock = LoopClock()
    clock.begin(1)
    clock.look(SETTLED_NS + 100, is_busy=False)
    clock.work_begins(60)
    clock.work_ends(150)
    assert (clock.busy_ns, clock.idle_ns) == (50, 99)


def test_nothing_is_said_of_an_engine_that_never_began() -> None:
    clock = LoopClock()
    clock.look(10 * SETTLED_NS, is_busy=False)
    assert (clock.busy_ns, clock.idle_ns) == (0, 0)
