"""Collapsed stacks: one line a stack with its count, summed by role or apart, whatever is in the names."""

from sample_sets import engine_samples

from vllm_obs.telemetry.sample_collapsed import collapsed_text, ran_text, read_collapsed
from vllm_obs.telemetry.sample_set import Frame, ThreadSamples

STEP = "main (vllm_obs/engine/process.py:10);EngineCore.step (vllm_obs/engine/core.py:100)"
STEPS = f"{STEP};EngineCore.step (vllm_obs/engine/core.py:101)"
WAIT = "main (vllm_obs/engine/process.py:10);Queue.get (queue.py:171)"


def test_each_stack_is_a_line_with_its_count() -> None:
    assert collapsed_text([engine_samples()]) == (
        f"EngineCore;MainThread;{STEP} 2\n"
        f"EngineCore;MainThread;{STEPS} 2\n"
        f"EngineCore;MainThread;{WAIT} 1\n"
        f"EngineCore;engine input;{WAIT} 5\n"
    )


def test_ranks_are_summed_or_apart() -> None:
    sets = [engine_samples("Worker_TP0"), engine_samples("Worker_TP1")]
    merged, apart = collapsed_text(sets).splitlines(), collapsed_text(sets, by_role=False).splitlines()
    assert merged[0] == f"Worker;MainThread;{STEP} 4"
    assert (apart[0], apart[4]) == (f"Worker_TP0;MainThread;{STEP} 2", f"Worker_TP1;MainThread;{STEP} 2")
    assert (len(merged), len(apart)) == (4, 8)


def test_names_break_neither_the_line_nor_the_list() -> None:
    samples = engine_samples()
    odd = samples._replace(
        frames=[Frame("a;b\nc", "d e.py", 1), *samples.frames[1:]],
        threads=[ThreadSamples(" ;\n ", 1, samples.threads[0].runs)],
    )
    text = collapsed_text([odd])
    assert text == "EngineCore;:;a:b c (d e.py:1);Queue.get (queue.py:171) 5\n"
    assert read_collapsed(text.splitlines()) == {
        ("EngineCore", ":", "a:b c (d e.py:1)", "Queue.get (queue.py:171)"): 5
    }


def test_no_sample_is_lost_on_the_way() -> None:
    sets = [engine_samples("Worker_TP0"), engine_samples("Worker_TP1")]
    counts = read_collapsed(collapsed_text(sets).splitlines())
    assert counts.total() == sum(samples.num_samples for samples in sets) == 20


def test_of_what_ran_each_stack_has_its_cpu_time_and_what_only_waited_is_left_out() -> None:
    assert ran_text([engine_samples("Worker_TP0"), engine_samples("Worker_TP1")]) == (
        f"Worker;MainThread;{STEP} 30000\nWorker;MainThread;{STEPS} 40000\n"
    )
    assert ran_text([]) == ""
