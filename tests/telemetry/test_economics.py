"""What requests are charged sums to what the engine spent, whatever happens to them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from charged_core import ACCOUNTS, ChargedCore
from fact_stream import API_SERVER, ENGINE, FactStream

from vllm_obs.telemetry.checkpoint import Checkpoint
from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_costs import OTHER, UNKNOWN, AccountTotals, RequestCost
from vllm_obs.telemetry.economics_engine import EngineTotals
from vllm_obs.telemetry.records import RequestTaken, StepAnswered, StepFailed, StepPlanned
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, RecordsLost, Source

NUM_REQUESTS = 1000
TOLERANCE = 0.005
NS = 10**9
STEP_NS = 1_055_000
"""How long a step of a FactStream takes; its plan is made after 20 µs."""
HELD_NS = STEP_NS - 20_000


def charged(facts: list[tuple[Source, Any]], economics: Economics | None = None) -> Economics:
    """Economics of a run of these facts."""
    state = RunState()
    economics = economics or Economics(state.engines.get)
    state.add_view(economics)
    for source, fact in facts:
        state.apply(source, fact)
    assert state.views.num_errors == 0
    return economics


def sums(economics: Economics) -> tuple[int, float]:
    """Step time and block time of all accounts."""
    accounts = economics.spending().accounts.values()
    return sum(totals.step_ns for totals in accounts), sum(totals.block_ns for totals in accounts)


def step_ns(records: list[Any]) -> int:
    """The time from the beginning of each step to its end, as it was recorded."""
    plans = {record.step: record for record in records if isinstance(record, StepPlanned)}
    ends = {record.step: record.updated_at for record in records if isinstance(record, StepAnswered)}
    ends |= {record.step: record.failed_at for record in records if isinstance(record, StepFailed)}
    return sum(at - plans[step].schedule_begun_at for step, at in ends.items())


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_requests_are_charged_all_the_time_and_all_the_blocks(seed: int) -> None:
    print(f"seed {seed}")
    core = ChargedCore(seed)
    core.run(NUM_REQUESTS)
    economics = core.economics
    charged_step_ns, charged_block_ns = sums(economics)
    assert charged_step_ns == step_ns(list(core.recorder.records))
    assert charged_block_ns == pytest.approx(core.pool_ns, rel=TOLERANCE)
    totals = economics.engines["0"].totals
    assert totals.held_block_ns == totals.core_block_ns == pytest.approx(charged_block_ns, rel=1e-9)
    assert core.recorder.num_lost == totals.unknown_ns == totals.num_lost_steps == 0
    assert totals.num_failed_steps == core.num_failed_steps
    assert (len(economics.book.live), len(economics.book.over), economics.is_exact) == (0, NUM_REQUESTS, True)
    assert core.state.views.num_errors == 0


def test_the_load_is_hard_enough_to_mean_something() -> None:
    core = ChargedCore(0)
    core.run(300)
    accounts = core.economics.known_accounts()
    assert set(accounts) == set(ACCOUNTS)
    assert min(core.endings[reason] for reason in ("length", "abort", "error")) > 0
    assert core.num_failed_steps > 0
    assert all(totals.num_recomputed_tokens and totals.num_cached_tokens for totals in accounts.values())
    assert {reason: sum(each.requests[reason] for each in accounts.values()) for reason in core.endings} == dict(
        core.endings
    )


def test_the_time_of_an_engine_has_four_kinds() -> None:
    core = ChargedCore(5)
    core.run(200)
    records = list(core.recorder.records)
    totals = core.economics.engines["0"].totals
    ends = [record.updated_at for record in records if isinstance(record, StepAnswered)]
    ends += [record.failed_at for record in records if isinstance(record, StepFailed)]
    ends += [each.schedule_ended_at for each in records if isinstance(each, StepPlanned) and not each.request_ids]
    first_at = next(iter(records)).described_at  # type: ignore[union-attr]
    assert totals.step_ns + totals.rowless_ns + totals.idle_ns + totals.unknown_ns == max(ends) - first_at
    assert min(totals.step_ns, totals.idle_ns) > 0


def two_rows() -> FactStream:
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=10, account="key-1")
    stream.submit("b", num_prompt_tokens=4, account="key-2")
    return stream


def test_whole_values_of_two_requests_in_one_step() -> None:
    """The step costs as much as 10 tokens before its first, and a cached token 0.00512 of one."""
    stream = two_rows()
    stream.step(["a", "b"])
    economics = charged(stream.facts)
    weights = (5 + 10 + 0.0512, 5 + 4 + 0.02048)
    a, b = economics.book.live["a"], economics.book.live["b"]
    assert (a.account, b.account) == ("key-1", "key-2")
    assert a.step_ns == int(STEP_NS * weights[0] / sum(weights))
    assert a.step_ns + b.step_ns == step_ns(stream.records) == STEP_NS
    # Three blocks and one, from the plan's end to the step's.
    assert (economics.block_ns(a), economics.block_ns(b)) == (3 * HELD_NS, HELD_NS)
    assert economics.step_share(a) == a.step_ns / STEP_NS


def test_a_finished_request_keeps_its_cost_and_its_account_the_sum() -> None:
    stream = two_rows()
    stream.step(["a", "b"])
    stream.finish("a", "length")
    stream.step(["b"])
    economics = charged(stream.facts)
    a = economics.book.find("a")
    assert a is not None
    assert (a.is_over, list(economics.book.live)) == (True, ["b"])
    assert economics.known_accounts()["key-1"] == AccountTotals(
        step_ns=a.step_ns,
        block_ns=a.block_ns,
        num_prompt_tokens=10,
        num_generation_tokens=1,
        requests={"length": 1},
    )
    assert 0 < economics.step_share(a) < 1


def test_a_failed_step_is_charged_to_its_batch() -> None:
    stream = two_rows()
    stream.step(["a", "b"], is_failed=True)
    economics = charged(stream.facts)
    assert sums(economics)[0] == step_ns(stream.records) > 0
    assert economics.engines["0"].totals.num_failed_steps == 1


def test_a_plan_without_rows_and_the_time_between_steps_are_nobodys() -> None:
    stream = two_rows()
    idle_ns = stream.now - next(record for record in stream.records).described_at  # type: ignore[union-attr]
    stream.step([])
    stream.pass_time(5000)
    stream.step(["a"])
    economics = charged(stream.facts)
    assert dataclasses.replace(economics.engines["0"].totals, core_block_ns=0, held_block_ns=0) == EngineTotals(
        step_ns=STEP_NS, rowless_ns=20_000, idle_ns=idle_ns + 5000, num_steps=1
    )
    assert sums(economics)[0] == STEP_NS


def test_steps_in_flight_together_are_charged_no_time_twice() -> None:
    """The second is planned before the first has answered: its time begins where the first one's ends."""
    stream = two_rows()
    stream.step(["a", "b"], is_answered=False)
    planned = [record for record in stream.records if isinstance(record, StepPlanned)][-1]
    second = planned._replace(step=2, schedule_begun_at=planned.schedule_ended_at + 10)
    second = second._replace(schedule_ended_at=second.schedule_begun_at + 10)
    end = second.schedule_ended_at
    first_answer = StepAnswered(1, end, end, end + 50, ["a", "b"], [1, 1], 0)
    second_answer = first_answer._replace(step=2, updated_at=end + 80)
    facts = [(ENGINE, record) for record in (second, first_answer, second_answer)]
    economics = charged([*stream.facts, *facts])
    assert sums(economics)[0] == end + 80 - planned.schedule_begun_at


def test_what_comes_after_the_end_is_added_to_the_account() -> None:
    """A sequence may close (its client has gone) while a step still runs it."""
    stream = two_rows()
    stream.step(["a"], is_answered=False)
    facts = list(stream.facts)
    planned = next(record for record in stream.records if isinstance(record, StepPlanned))
    stream.abort("a")
    stream.release("b", "abort")
    facts = list(stream.facts)
    facts.append((ENGINE, StepAnswered(1, stream.now, stream.now, stream.now + 5, [], [], 1)))
    economics = charged(facts)
    assert economics.known_accounts()["key-1"].step_ns == stream.now + 5 - planned.schedule_begun_at
    assert economics.engines["0"].totals.num_wasted_rows == 1


def test_after_lost_records_it_says_so_and_charges_nobody() -> None:
    stream = two_rows()
    stream.step(["a", "b"])
    before = len(stream.facts)
    stream.step(["a", "b"])
    lost = stream.facts[before:]
    kept: list[tuple[Source, Fact]] = [*stream.facts[:before], (ENGINE, RecordsLost(len(lost)))]
    after = len(stream.facts)
    stream.step(["a", "b"])
    kept += stream.facts[after:]
    economics = charged(kept)
    totals = economics.engines["0"].totals
    assert sums(economics)[0] == totals.step_ns == 2 * STEP_NS
    plans = [record for record in stream.records if isinstance(record, StepPlanned)]
    assert totals.unknown_ns == plans[2].schedule_begun_at - plans[0].schedule_begun_at - STEP_NS
    assert (economics.num_lost, economics.is_exact, economics.engines["0"].is_exact) == (len(lost), False, False)


def test_an_answer_whose_plan_was_lost_is_a_lost_step() -> None:
    stream = two_rows()
    stream.step(["a", "b"])
    facts = [fact for fact in stream.facts if not isinstance(fact[1], StepPlanned)]
    economics = charged(facts)
    assert (sums(economics)[0], economics.engines["0"].totals.num_lost_steps) == (0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_add_up_again_when_keyframes_have_told_everything(seed: int) -> None:
    core = ChargedCore(seed)
    core.run(60)
    core.recorder.is_losing = True
    core.run_more(10)
    core.recorder.is_losing = False
    core.run_more(80)
    engine = core.economics.engines["0"]
    assert (engine.is_exact, engine.blocks.holders) == (True, [])
    before, pool_ns = dataclasses.replace(engine.totals), core.pool_ns
    core.run_more(40)
    held_ns = engine.totals.held_block_ns - before.held_block_ns
    assert held_ns == engine.totals.core_block_ns - before.core_block_ns
    assert held_ns == pytest.approx(core.pool_ns - pool_ns, rel=TOLERANCE)
    assert core.economics.num_lost > 0
    assert sums(core.economics)[0] == engine.totals.step_ns < step_ns(list(core.recorder.records))


def test_an_engine_that_follows_another_takes_its_blocks_from_nobody() -> None:
    stream = two_rows()
    stream.step(["a", "b"])
    economics = charged(stream.facts)
    next_engine = FactStream(now=stream.now + NS, engine=ENGINE._replace(generation=2001, pid=201))
    next_engine.describe()
    next_engine.submit("c", account="key-1")
    next_engine.step(["c"])
    for source, record in next_engine.facts:
        economics.record(source, record)
    late = stream.step(["a"])
    for source, record in late:
        economics.record(source, record)
    assert economics.engines["0"].blocks.holders == ["c"]
    assert sums(economics)[0] == 2 * STEP_NS
    assert economics.block_ns(economics.book.live["a"]) == 3 * HELD_NS


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    stream = two_rows()
    stream.step(["a", "b"])
    stream.step(["a", "b"])
    half = len(stream.facts)
    stream.finish("a")
    stream.step(["b"])
    stream.finish("b")
    through = charged(stream.facts)
    first, second = charged(stream.facts[:half]), Economics()
    assert Checkpoint(tmp_path / "checkpoint", {"economics": first}).save([], 1)
    resumed = Checkpoint(tmp_path / "checkpoint", {"economics": second}).load()
    assert resumed is not None
    assert resumed.lost_parts == []
    assert second.state() == first.state()
    state = RunState()
    for source, record in stream.facts[:half]:
        state.apply(source, record)
    state.add_view(second)
    for source, record in stream.facts[half:]:
        state.apply(source, record)
    assert second.spending() == through.spending()


def test_a_state_of_another_version_is_refused() -> None:
    economics = Economics()
    state = economics.state()
    with pytest.raises(ValueError, match="economics of version 99"):
        economics.restore([99, *state[1:]])


def test_one_that_nobody_submitted_goes_to_other_after_its_release() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("a")
    stream.step(["a"])
    stream.release("a")
    economics = charged([fact for fact in stream.facts if fact[0] != API_SERVER])
    assert list(economics.spending().accounts) == [UNKNOWN]
    assert economics.known_accounts() == {}
    economics.tick(stream.now + 16 * NS)
    assert {name: totals.step_ns for name, totals in economics.known_accounts().items()} == {OTHER: STEP_NS}


def test_a_submission_that_comes_late_names_the_account() -> None:
    economics = Economics()
    taken = RequestTaken("a", 0, 1, 2, 10, 16, 0)
    economics.record(ENGINE, taken)
    (_, submitted), *_ = FactStream().submit("a", is_taken=False, account="")
    economics.record(API_SERVER, submitted)
    assert economics.book.live["a"] == RequestCost("a", account="none", engine="0", external_id="label-a")
