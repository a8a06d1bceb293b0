"""Samples are kept in runs; every part of them has a bound, and what is over it is still counted."""

from vllm_obs.telemetry.sample_runs import OTHER, RunBook
from vllm_obs.telemetry.sample_set import UNKNOWN, StackRun, ThreadSamples
from vllm_obs.telemetry.sample_threads import MAX_THREADS, OTHER_THREADS

TIMES = (1_000_000_000, 500_000_000)


def test_equal_stacks_in_a_row_are_one_run() -> None:
    book = RunBook()
    thread = book.thread("main", 5)
    first, _ = book.place((1, 2))
    second, _ = book.place((1, 4))
    for stack, ran in ((first, True), (first, False), (second, True), (first, True)):
        book.add(thread, stack, TIMES, ran)
    runs = [StackRun(1, 2, 2.0, 1.0, 1), StackRun(2, 1, 1.0, 0.5, 1), StackRun(1, 1, 1.0, 0.5, 1)]
    assert book.samples() == [ThreadSamples("main", 5, runs)]
    assert book.is_in_order


def test_of_a_thread_that_python_did_not_start_nobody_knows_whether_it_ran() -> None:
    book = RunBook()
    book.add(book.thread("thread 0x1", 0), 0, (1_000_000_000, 0), False)
    assert book.samples() == [ThreadSamples("thread 0x1", 0, [StackRun(0, 1, 1.0, 0.0, UNKNOWN)])]


def test_a_stack_is_new_once() -> None:
    book = RunBook()
    assert (book.place((1, 2)), book.place((1, 2)), book.place((3, 4))) == ((1, True), (1, False), (2, True))


def test_stacks_over_the_bound_share_one_place() -> None:
    book = RunBook(max_stacks=3)
    places = [book.place((number, 0)) for number in range(1, 6)]
    assert places == [(1, True), (2, True), (OTHER, False), (OTHER, False), (OTHER, False)]
    assert (len(book.stacks), book.num_unplaced) == (3, 3)


def test_over_the_bound_of_runs_none_begins_and_no_sample_is_lost() -> None:
    book = RunBook(max_runs=4)
    thread = book.thread("main", 5)
    for number in range(100):
        stack, _ = book.place((number % 3, 0))
        book.add(thread, stack, TIMES, True)
    late = book.thread("late", 6)
    for number in range(5):
        book.add(late, book.place((number % 3, 0))[0], TIMES, False)
    main, other = book.samples()
    assert not book.is_in_order
    assert (len(main.runs), sum(run.num_samples for run in main.runs)) == (4, 100)
    assert sum(run.seconds for run in main.runs) == 100
    assert other.runs == [StackRun(OTHER, 5, 5.0, 2.5, 0)]


def test_a_stack_that_comes_after_the_bound_of_runs_is_one_of_the_others() -> None:
    book = RunBook(max_runs=1)
    thread = book.thread("main", 5)
    for number in (1, 2, 3, 1):
        book.add(thread, book.place((number, 0))[0], TIMES, True)
    assert [(run.stack, run.num_samples) for run in book.samples()[0].runs] == [(1, 2), (OTHER, 2)]


def test_over_the_bound_of_runs_a_thread_that_waits_is_where_it_was_seen_last() -> None:
    book = RunBook(max_runs=2)
    thread = book.thread("main", 5)
    for number in (1, 2, 1):
        book.add(thread, book.place((number, 0))[0], TIMES, True)
    thread.wait_on(1_000_000_000)
    assert [(run.stack, run.num_samples, run.seconds) for run in thread.finished()] == [(1, 3, 3.0), (2, 1, 1.0)]


def test_threads_over_the_bound_share_one_place() -> None:
    book = RunBook()
    for tid in range(1, MAX_THREADS + 11):
        book.add(book.thread("worker", tid), 0, TIMES, False)
    threads = book.samples()
    assert len(threads) == MAX_THREADS + 1
    assert threads[-1] == ThreadSamples(OTHER_THREADS, 0, [StackRun(OTHER, 10, 10.0, 5.0, UNKNOWN)])


def test_a_thread_without_a_sample_is_not_told_of() -> None:
    book = RunBook()
    book.thread("main", 5)
    assert book.samples() == []
