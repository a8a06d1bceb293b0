"""Rows that decode side by side are followed together, and come to the same links as one by one."""

from random import Random
from typing import Any

from span_facts import CORE, answered, planned, submitted

from vllm_obs.telemetry.records import StepAnswered, StepFailed, StepPlanned
from vllm_obs.telemetry.step_links import TracedRows

RUN = "run-1"
MAX_ROWS = 6


class Twins:
    """Follows the same steps twice: with the lists of the step before where they are equal, and with new ones."""

    def __init__(self) -> None:
        self.together, self.alone = TracedRows(RUN), TracedRows(RUN)
        self.ids: list[str] = []
        self.num_tokens: list[int] = []
        self.step = 0

    def begin(self, name: str) -> None:
        for rows in (self.together, self.alone):
            rows.begin(submitted(name))
        self.ids = [*self.ids, name]

    def end(self, name: str) -> None:
        assert seen(self.together, name) == seen(self.alone, name)
        self.ids = [each for each in self.ids if each != name]

    def run(self, random: Random) -> None:
        self.step += random.choice((1,) * 30 + (2, 5))
        step, at, is_failed = self.step, 1000 * self.step, random.random() < 0.02
        num_tokens = [random.choice((1,) * 200 + (3,)) for _ in self.ids]
        self.num_tokens = self.num_tokens if num_tokens == self.num_tokens else num_tokens
        blocks = [random.choice((0,) * 12 + (1,)) for _ in self.ids]
        resumed = [random.choice(self.ids)] if random.random() < 0.02 else []
        plan = planned(step, self.ids, at, num_new_blocks=blocks, resumed_ids=resumed)
        plan = plan._replace(request_ids=self.ids, num_scheduled_tokens=self.num_tokens)
        answer = answered(step, self.ids, at)._replace(request_ids=self.ids)
        for rows, is_copied in ((self.together, False), (self.alone, True)):
            rows.planned(CORE, copied(plan) if is_copied else plan)
            if is_failed:
                rows.failed(CORE, StepFailed(step, "broke", at + 90, self.ids))
            else:
                rows.answered(CORE, copied(answer) if is_copied else answer)
        assert linked(self.together, step) == linked(self.alone, step)


def copied(record: Any) -> Any:
    assert isinstance(record, StepPlanned | StepAnswered)
    return type(record)(*(list(each) if isinstance(each, list) else each for each in record))


def linked(rows: TracedRows, step: int) -> tuple[int, int, list[bytes]]:
    found = rows.step_links(CORE.engine, step)
    assert found is not None
    return found.trace_id, found.span_id, list(found.links)


def seen(rows: TracedRows, name: str) -> list[tuple[object, ...]]:
    return [
        (each.span_id, each.stage, each.first_step, each.last_step, each.first_at, each.last_at, *each.links)
        for each in rows.end(name)
    ]


def test_rows_come_to_the_same_links_together_and_one_by_one() -> None:
    for seed in range(30):
        random, twins, number = Random(seed), Twins(), 0
        for _ in range(400):
            if not twins.ids or (len(twins.ids) < MAX_ROWS and random.random() < 0.03):
                number += 1
                twins.begin(f"r{number}")
            if len(twins.ids) > 1 and random.random() < 0.02:
                twins.end(random.choice(twins.ids))
            twins.run(random)
        assert twins.together._num_held == twins.alone._num_held
        for name in list(twins.ids):
            twins.end(name)


def test_rows_that_run_on_are_cut_after_128_steps() -> None:
    rows, ids, tokens = TracedRows(RUN), ["a", "b"], [1, 1]
    for name in ids:
        rows.begin(submitted(name))
    for step in range(1, 302):
        plan = planned(step, ids, step * 1000)._replace(request_ids=ids, num_scheduled_tokens=tokens)
        rows.planned(CORE, plan)
        rows.answered(CORE, answered(step, ids, step * 1000)._replace(request_ids=ids))
    assert [(each.first_step, each.num_steps, len(each.links)) for each in rows.end("a")] == [
        (1, 1, 1),
        (2, 128, 128),
        (130, 128, 128),
        (258, 44, 44),
    ]
