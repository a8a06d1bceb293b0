"""A model that gives numbers to nobody is left alone for a while; one bad request is not that."""

import numpy as np
import pytest
from step_outputs import Row, step_outputs

from vllm_obs.engine.frontend.answer_watch import MAX_BROKEN_ANSWERS, REST_SECONDS, AnswerWatch
from vllm_obs.engine.messages import FinishReason

BROKEN = Row("bad", [], FinishReason.ERROR, error=("invalid_logits", "not finite"))
GOOD = Row("good", [7])
VECTOR = step_outputs(Row("good"))._replace(pooled=[(0, np.ones(4, np.float32))])
FAILED = Row("bad", [], FinishReason.ERROR, error=("internal_error", "planted"))


class Watched:
    """A watch and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = AnswerWatch(lambda: self.now)

    def saw(self, *rows: Row) -> bool:
        self.watch.saw(step_outputs(*rows))
        return self.watch.is_broken(0)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_three_broken_answers_in_a_row_are_a_broken_model(watched: Watched) -> None:
    assert [watched.saw(BROKEN) for _ in range(MAX_BROKEN_ANSWERS)] == [False, False, True]


def test_a_token_for_anybody_between_them_is_none(watched: Watched) -> None:
    answers = [(BROKEN,), (BROKEN,), (GOOD,), (BROKEN,), (BROKEN, GOOD), (BROKEN,), (BROKEN,)]
    assert [watched.saw(*rows) for rows in answers] == [False] * 7


def test_a_vector_for_anybody_is_as_good_as_a_token(watched: Watched) -> None:
    for _ in range(2 * MAX_BROKEN_ANSWERS):
        assert not watched.saw(BROKEN)
        watched.watch.saw(VECTOR)
    watched.saw(BROKEN)
    both = step_outputs(BROKEN, Row("good"))._replace(pooled=VECTOR.pooled)
    watched.watch.saw(both)
    assert [watched.saw(BROKEN) for _ in range(MAX_BROKEN_ANSWERS)] == [False, False, True]


def test_other_errors_are_not_the_models(watched: Watched) -> None:
    assert [watched.saw(FAILED) for _ in range(10)] == [False] * 10


def test_one_token_mends_it_at_once(watched: Watched) -> None:
    for _ in range(MAX_BROKEN_ANSWERS):
        watched.saw(BROKEN)
    assert watched.saw(GOOD) is False
    assert [watched.saw(BROKEN) for _ in range(MAX_BROKEN_ANSWERS)] == [False, False, True]


def test_after_a_rest_it_may_be_tried_and_one_more_broken_answer_is_enough(watched: Watched) -> None:
    for _ in range(MAX_BROKEN_ANSWERS):
        watched.saw(BROKEN)
    watched.now += REST_SECONDS
    assert not watched.watch.is_broken(0)
    assert watched.saw(BROKEN)
    watched.now += REST_SECONDS
    assert not watched.watch.is_broken(0)


def test_a_token_of_another_engine_mends_nothing(watched: Watched) -> None:
    other = step_outputs(GOOD)._replace(engine_index=1)
    for _ in range(MAX_BROKEN_ANSWERS):
        watched.saw(BROKEN)
        watched.watch.saw(other)
    assert [watched.watch.is_broken(engine) for engine in (0, 1)] == [True, False]
    watched.watch.forget(0)  # another takes its place
    assert not watched.watch.is_broken(0)
