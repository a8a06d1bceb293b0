"""The core has the last word on its queue, and tells when a sequence leaves it."""

from core_bench import PROMPT, Bench
from fake_executor import tiny_config

from vllm_obs.engine.messages import FinishReason


def bench(**scheduler: int) -> Bench:
    return Bench(config=tiny_config(**{"max_num_seqs": 2, "max_num_queued_reqs": 2, **scheduler}))


def refused(run: Bench) -> list[str]:
    return [
        name
        for name, seen in run.seen.items()
        if seen.error == ("overloaded", "The queue is full (max_num_queued_reqs).")
    ]


def test_more_than_run_and_wait_are_refused_each_with_an_ending() -> None:
    run = bench()
    for name in "abcdef":
        run.add(name, [1, 2, 3])
    seen = run.run()
    assert refused(run) == ["e", "f"]
    assert [seen[name].finish_reason for name in "abcdef"] == [FinishReason.LENGTH] * 4 + [FinishReason.ERROR] * 2
    assert max(message.stats.num_waiting for message in run.messages if message.stats) <= 2
    assert run.core.counters.num_rejected_adds == 2


def test_the_queue_is_as_long_as_its_bound_while_the_engine_is_full() -> None:
    run = bench()
    for name in "abcd":
        run.add(name, [1, 2, 3], max_tokens=20)
    run.step()
    run.add("e", [1, 2, 3])
    run.abort("c")
    run.add("f", [1, 2, 3])
    run.run()
    assert refused(run) == ["e"]


def test_several_front_ends_share_the_bound() -> None:
    run = bench()
    for number, name in enumerate("abcdef"):
        run.add(name, [1, 2, 3], client_index=number % 2)
    run.run()
    assert sorted(refused(run)) == ["e", "f"]


def test_a_paused_engine_takes_as_many_as_may_wait() -> None:
    run = bench()
    run.core.call_utility("pause_scheduler", ["wait"])
    for name in "abc":
        run.add(name, [1, 2, 3])
    run.core.call_utility("resume_scheduler", [])
    run.run()
    assert refused(run) == ["c"]


def test_tokens_are_bounded_too() -> None:
    run = bench(max_num_queued_reqs=100, max_num_queued_tokens=12, max_num_seqs=1)
    for name in "abc":
        run.add(name, PROMPT)
    run.run()
    assert run.seen["c"].error == ("too_many_queued_tokens", "The queue is full (max_num_queued_tokens).")
    assert run.seen["b"].error is None


def test_a_prompt_of_several_steps_is_told_when_it_leaves_the_queue() -> None:
    run = bench(max_num_batched_tokens=8)
    run.add("a", list(range(20)))
    first = run.step()[0]
    assert (first.scheduled_ids, first.request_ids) == (["a"], [])
    run.run()
    assert [message.scheduled_ids for message in run.messages[1:]] == [[]] * (len(run.messages) - 1)


def test_without_a_bound_nothing_more_is_sent() -> None:
    run = Bench(config=tiny_config(max_num_batched_tokens=8))
    run.add("a", list(range(20)))
    assert run.step() == {}
    run.run()
