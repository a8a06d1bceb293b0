"""The input batch, changed by difference, always equals one built anew from all that is known."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.sampling.columns import needs_of
from vllm_obs.engine.worker.input_batch import NO_TOKEN, InputBatch

MAX_ROWS, MAX_TOKENS, BLOCK, VOCAB = 4, 24, 4, 50

specs = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7]),
        "top_p": st.sampled_from([1.0, 0.9]),
        "seed": st.integers(-3, 2**64),
        "sequence_index": st.integers(0, 3),
        "repetition_penalty": st.sampled_from([1.0, 1.2]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "min_tokens": st.integers(0, 2),
        "logit_bias": st.sampled_from([(), ((3, 1.0),)]),
        "logprobs": st.sampled_from([None, 2]),
        "prompt_logprobs": st.sampled_from([None, 0, 3]),
    }
).map(lambda fields: SamplingSpec(**fields))


@dataclass
class Known:
    """A sequence as the plans have told it."""

    tokens: list[int]
    num_prompt: int
    spec: SamplingSpec
    blocks: list[int]
    computed: int
    pending: int = NO_TOKEN
    wants_prompt_logprobs: bool = field(default=False)

    @property
    def room(self) -> int:
        return MAX_TOKENS - len(self.tokens)


def check(batch: InputBatch, known: dict[str, Known]) -> None:
    assert batch.num_rows == len(known)
    assert sorted(batch.request_ids) == sorted(known)
    for row, name in enumerate(batch.request_ids):
        one = known[name]
        assert batch.token_ids[row].tolist() == one.tokens + [0] * one.room
        padding = [0] * (batch.block_tables.shape[1] - len(one.blocks))
        assert batch.block_tables[row].tolist() == one.blocks + padding
        wanted = one.spec.prompt_logprobs if one.wants_prompt_logprobs else -1
        assert (
            batch.num_blocks[row],
            batch.num_tokens[row],
            batch.num_prompt_tokens[row],
            batch.num_computed_tokens[row],
            batch.num_prompt_logprobs[row],
            batch.pending[row],
        ) == (len(one.blocks), len(one.tokens), one.num_prompt, one.computed, wanted, one.pending)
        check_sampling(batch, row, one)
    for row in range(batch.num_rows, MAX_ROWS):
        check_empty(batch, row)


def check_sampling(batch: InputBatch, row: int, one: Known) -> None:
    columns = batch.sampling
    assert columns.specs[row] == one.spec
    assert columns.needs[row] == needs_of(one.spec)
    assert columns.temperatures[row] == np.float32(one.spec.temperature)
    assert (columns.seeds[row], columns.sequence_indices[row]) == (one.spec.seed % 2**64, one.spec.sequence_index)
    assert (columns.constraints[row] is not None) == bool(one.spec.logit_bias or one.spec.min_tokens)
    seen = columns.seen[row]
    if seen is None:
        assert (one.spec.repetition_penalty, one.spec.presence_penalty) == (1.0, 0.0)
        return
    prompt, output = one.tokens[: one.num_prompt], one.tokens[one.num_prompt :]
    tracked = {*output, *(prompt if one.spec.repetition_penalty != 1.0 else ())}
    counts = dict(zip(seen.token_ids.tolist(), seen.counts.tolist(), strict=True))
    assert counts == {token: output.count(token) for token in tracked}


def check_empty(batch: InputBatch, row: int) -> None:
    columns = batch.sampling
    assert not batch.token_ids[row].any()
    assert not batch.block_tables[row].any()
    counts = (batch.num_blocks, batch.num_tokens, batch.num_prompt_tokens, batch.num_computed_tokens)
    assert [column[row] for column in counts] == [0, 0, 0, 0]
    assert (batch.num_prompt_logprobs[row], batch.pending[row]) == (-1, NO_TOKEN)
    numbers = (columns.needs, columns.temperatures, columns.seeds, columns.sequence_indices)
    assert [column[row] for column in numbers] == [0, 0, 0, 0]
    assert columns.specs[row] is columns.constraints[row] is columns.seen[row] is None


def draw_new(data: st.DataObject, name: str, resumed: Known | None) -> NewRow:
    if resumed is None:
        num_prompt = data.draw(st.integers(1, 8))
        tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=num_prompt, max_size=num_prompt))
        spec = data.draw(specs)
    else:
        tokens, num_prompt, spec = resumed.tokens, resumed.num_prompt, resumed.spec
    computed = data.draw(st.integers(0, len(tokens) - 1))
    blocks = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=-(-len(tokens) // BLOCK)))
    return NewRow(name, np.array(tokens, np.int32), num_prompt, spec, blocks, computed)


def advance(data: st.DataObject, one: Known) -> tuple[list[int], int, int]:
    """New blocks, progress and the last token for one running row, applied to what is known."""
    num_free = MAX_TOKENS // BLOCK - len(one.blocks)
    blocks = data.draw(st.lists(st.integers(1, 99), max_size=min(1, num_free)))
    last = data.draw(st.sampled_from([one.pending, NO_TOKEN])) if one.pending >= 0 else NO_TOKEN
    one.blocks += blocks
    if one.pending >= 0:
        one.computed = len(one.tokens)
        one.tokens.append(one.pending)
        one.pending = NO_TOKEN
    else:
        one.computed = data.draw(st.integers(one.computed, len(one.tokens) - 1))
    return blocks, one.computed, last


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_plans_leave_what_building_anew_would(data: st.DataObject) -> None:
    batch = InputBatch(MAX_ROWS, MAX_TOKENS, BLOCK, VOCAB)
    known: dict[str, Known] = {}
    preempted: dict[str, Known] = {}
    for step in range(data.draw(st.integers(1, 8))):
        released = [name for name in list(known) if data.draw(st.integers(0, 3)) == 0]
        preempted |= {name: known.pop(name) for name in released}
        new = []
        for place in range(data.draw(st.integers(0, MAX_ROWS - len(known)))):
            resumed = data.draw(st.sampled_from([None, *sorted(set(preempted) - {row.request_id for row in new})]))
            name = resumed or f"s{step}.{place}"
            new.append(draw_new(data, name, preempted.get(name)))
        running = [name for name, one in known.items() if one.room and data.draw(st.booleans())]
        columns = [advance(data, known[name]) for name in running]
        for row in new:
            tokens = row.token_ids.tolist()
            one = Known(tokens, row.num_prompt_tokens, row.sampling, list(row.block_ids), row.num_computed_tokens)
            asked = row.sampling.prompt_logprobs is not None
            one.wants_prompt_logprobs = asked and len(tokens) == row.num_prompt_tokens
            known[row.request_id] = one
            preempted.pop(row.request_id, None)
        plan = StepPlan(
            step,
            new,
            running,
            [blocks for blocks, _, _ in columns],
            [computed for _, computed, _ in columns],
            [last for _, _, last in columns],
            [1] * (len(new) + len(running)),
            [*released, "unknown"],
        )
        rows = batch.update(plan)
        assert [batch.request_ids[row] for row in rows.tolist()] == plan.row_ids
        check(batch, known)
        sampled = [name for name in plan.row_ids if known[name].room and data.draw(st.booleans())]
        tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(sampled), max_size=len(sampled)))
        batch.note_sampled(np.array([batch.request_ids.index(name) for name in sampled], np.int64), tokens)
        for name, token in zip(sampled, tokens, strict=True):
            known[name].pending = token
        check(batch, known)


def test_a_row_added_twice_is_started_anew() -> None:
    batch = InputBatch(MAX_ROWS, MAX_TOKENS, BLOCK, VOCAB)
    first = NewRow("a", np.array([1, 2, 3], np.int32), 3, SamplingSpec(top_k=3), [5], 0)
    again = NewRow("a", np.array([4], np.int32), 1, SamplingSpec(temperature=0.0), [6], 0)
    batch.update(StepPlan(1, [first], [], [], [], [], [3], []))
    batch.update(StepPlan(2, [again], [], [], [], [], [1], []))
    check(batch, {"a": Known([4], 1, SamplingSpec(temperature=0.0), [6], 0)})
