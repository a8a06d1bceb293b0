"""Grammars that are large or hostile are compiled beside a stream, which goes on with every step meanwhile."""

import contextlib
import itertools
import statistics
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from run_rings import only_run, records_of
from serving import Server, serving

from vllm_obs.telemetry.records import Record, RequestTaken, StepAnswered, StepPlanned

NUM_TOKENS = 1900
"""More than are made until the last grammar is compiled."""
NUM_ORDINARY = 40
"""Of them come before the first grammar does."""
NUM_GRAMMARS = 20
TEXT = "/v1/completions"
NEIGHBOUR = {"prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0}
T = TypeVar("T", bound=Record)


def large(number: int) -> dict[str, Any]:
    return {"choice": [f"grammar {number} has {choice * choice} in place {choice}" for choice in range(2500)]}


def wide(number: int) -> dict[str, Any]:
    names, values = [f"field{name}" for name in range(100)], [f"value {number} {value}" for value in range(40)]
    fields = {name: {"enum": values} for name in names}
    return {"json": {"type": "object", "properties": fields, "required": names}}


def hostile(number: int) -> dict[str, Any]:
    return {"regex": f"((a|b{number}|ab|[a-z]{{1,900}}){{1,900}}){{1,900}}(?=x)"}


KINDS = ((large, 200), (wide, 200), (hostile, 400))
"""Of grammars that take long, each with the status of its reply."""


def ask(server: Server, number: int) -> tuple[int, int]:
    """The status that a grammar of its own has, and the one it should have."""
    make, status = KINDS[number % len(KINDS)]
    body = {"prompt": "Hi", "max_tokens": 1, "structured_outputs": make(number)}
    return server.request("POST", TEXT, body)[0], status


def of(records: list[Record], kind: type[T]) -> list[T]:
    return [record for record in records if isinstance(record, kind)]


def compile_beside_a_stream(server: Server) -> list[tuple[int, int]]:
    """The statuses of all grammars, sent while a stream runs from before the first until after the last."""
    with ThreadPoolExecutor(4) as threads, contextlib.closing(server.stream(TEXT, NEIGHBOUR)) as stream:
        asked: list[Future[tuple[int, int]]] = []
        for place, _ in enumerate(stream):
            if place == NUM_ORDINARY:
                asked = [threads.submit(ask, server, number) for number in range(NUM_GRAMMARS)]
            if asked and all(future.done() for future in asked):
                return [future.result() for future in asked]
    raise AssertionError("the stream was over before the grammars")


@pytest.mark.long
def test_a_stream_misses_no_step_while_grammars_are_compiled(base: Path) -> None:
    env = {"VLLM_OBS_RUN_DIR": str(base)}
    with serving("--kv-cache-memory-bytes", "256M", env=env) as server:
        statuses = compile_beside_a_stream(server)
        core = records_of(only_run(base), "EngineCore_DP0")
    assert [status for status, _ in statuses] == [expected for _, expected in statuses]

    neighbour = of(core, RequestTaken)[0].request_id
    steps = {each.step: each for each in of(core, StepAnswered) if neighbour in each.request_ids}
    first, last = min(steps), max(steps)
    planned = [each for each in of(core, StepPlanned) if first <= each.step <= last]
    assert all(neighbour in each.request_ids for each in planned)  # nobody else had a step without it
    assert any(each.grammar_ids for each in planned)  # grammars were compiled meanwhile

    moments = [steps[number].updated_at for number in sorted(steps)]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    ordinary, beside = (statistics.median(part) for part in (gaps[:NUM_ORDINARY], gaps[NUM_ORDINARY:]))
    assert beside < 3 * 2 * ordinary  # its own step and one more
