"""Balancers: never to an engine that is down; by load where a policy looks at it; by prefix while that is fair."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.balancer import (
    BALANCER_NAMES,
    BOUND,
    MAX_PREFIX_TOKENS,
    WAITING_WEIGHT,
    EngineLoad,
    make_balancer,
    prefix_key,
)
from vllm_obs.engine.errors import ConfigError, EngineDeadError

IDLE = EngineLoad(0, 0, 0, True)
DOWN = IDLE._replace(is_up=False)
KEYS = [b"%d" % number for number in range(400)]

numbers = st.integers(0, 300)
loads = st.lists(st.builds(EngineLoad, numbers, numbers, numbers, st.booleans()), min_size=1, max_size=70)


@settings(deadline=None)
@given(st.sampled_from(BALANCER_NAMES), loads, st.binary(max_size=16), st.integers(0, 5))
def test_an_engine_that_is_up_is_chosen_or_it_is_said_that_none_is(
    name: str, seen: list[EngineLoad], key: bytes, seed: int
) -> None:
    balancer = make_balancer(name, seed)
    if any(load.is_up for load in seen):
        assert all(seen[balancer.choose(seen, key)].is_up for _ in range(3))
    else:
        with pytest.raises(EngineDeadError, match=f"^none of {len(seen)} engines is up$"):
            balancer.choose(seen, key)


@settings(deadline=None)
@given(st.sampled_from(BALANCER_NAMES), st.lists(loads, max_size=5), st.integers(0, 5))
def test_what_is_chosen_depends_on_the_seed_and_on_nothing_else(
    name: str, history: list[list[EngineLoad]], seed: int
) -> None:
    seen = [[*each, IDLE] for each in history]
    one, other = make_balancer(name, seed), make_balancer(name, seed)
    assert [one.choose(each, b"key") for each in seen] == [other.choose(each, b"key") for each in seen]


@given(loads, st.integers(0, 5))
def test_least_loaded_leaves_nobody_out_who_has_less_to_do(seen: list[EngineLoad], seed: int) -> None:
    seen = [*seen, IDLE._replace(num_waiting=7)]
    chosen = seen[make_balancer("least_loaded", seed).choose(seen, b"")]
    assert chosen.cost == min(load.cost for load in seen if load.is_up)


def test_one_that_waits_weighs_more_than_one_that_runs_and_what_was_sent_counts() -> None:
    balancer = make_balancer("least_loaded", 0)
    waiting, running = IDLE._replace(num_waiting=1), IDLE._replace(num_running=WAITING_WEIGHT - 1)
    sent = IDLE._replace(num_in_flight=1)
    assert {balancer.choose([waiting, running, sent], b"") for _ in range(20)} == {1}


def test_several_clients_that_know_the_same_do_not_all_choose_the_same() -> None:
    chosen = Counter(make_balancer("least_loaded", seed).choose([IDLE] * 8, b"") for seed in range(80))
    assert set(chosen) == set(range(8))


@given(loads, st.integers(0, 5))
def test_of_two_engines_power_of_two_takes_the_less_loaded(seen: list[EngineLoad], seed: int) -> None:
    pair = [load._replace(is_up=True) for load in (seen[0], seen[-1])]
    chosen = pair[make_balancer("power_of_two", seed).choose([DOWN, *pair], b"") - 1]
    assert chosen.cost == min(load.cost for load in pair)


def test_power_of_two_asks_every_engine_now_and_then_and_the_most_loaded_gets_nothing() -> None:
    balancer = make_balancer("power_of_two", 3)
    seen = [IDLE, IDLE, IDLE._replace(num_running=50), IDLE]
    assert set(Counter(balancer.choose(seen, b"") for _ in range(200))) == {0, 1, 3}


def test_round_robin_takes_turns_and_passes_over_one_that_is_down() -> None:
    balancer = make_balancer("round_robin", 0)
    first = balancer.choose([IDLE] * 4, b"")
    assert [balancer.choose([IDLE] * 4, b"") for _ in range(8)] == [(first + turn) % 4 for turn in range(1, 9)]
    seen = [IDLE, DOWN, IDLE, DOWN]
    assert Counter(balancer.choose(seen, b"") for _ in range(40)) == {0: 20, 2: 20}


def test_a_prefix_stays_where_it_is_while_all_are_about_as_loaded() -> None:
    balancer, other = make_balancer("prefix_affine", 0), make_balancer("prefix_affine", 1)
    rng = random.Random(0)
    homes = {key: balancer.choose([IDLE] * 8, key) for key in KEYS}
    assert all(30 < count < 75 for count in Counter(homes.values()).values()), "keys are spread"
    for key in KEYS:
        seen = [IDLE._replace(num_running=100 + rng.randrange(9)) for _ in range(8)]
        assert other.choose(seen, key) == homes[key], "every client finds the same engine"


def test_a_prefix_leaves_an_engine_over_the_bound_and_comes_back() -> None:
    balancer = make_balancer("prefix_affine", 0)
    home = balancer.choose([IDLE] * 8, b"key")
    seen = [IDLE._replace(num_running=10)] * 8
    seen[home] = IDLE._replace(num_running=30)
    second = balancer.choose(seen, b"key")
    assert second != home
    assert {balancer.choose(seen, b"key") for _ in range(10)} == {second}
    assert balancer.choose([IDLE] * 8, b"key") == home


@settings(deadline=None)
@given(loads, st.binary(min_size=1, max_size=16))
def test_who_takes_a_prefix_is_within_the_bound(seen: list[EngineLoad], key: bytes) -> None:
    seen = [*seen, IDLE]
    costs = [load.cost for load in seen if load.is_up]
    chosen = make_balancer("prefix_affine", 0).choose(seen, key)
    assert seen[chosen].cost <= BOUND * (sum(costs) / len(costs) + WAITING_WEIGHT)


def test_a_prefix_stays_although_another_engine_is_idle_while_few_are_there() -> None:
    balancer = make_balancer("prefix_affine", 0)
    home = balancer.choose([IDLE] * 2, b"key")
    seen = [IDLE] * 2
    seen[home] = IDLE._replace(num_running=WAITING_WEIGHT)
    assert balancer.choose(seen, b"key") == home


def test_the_loss_of_an_engine_moves_only_what_was_there() -> None:
    balancer = make_balancer("prefix_affine", 0)
    for key in KEYS:
        home = balancer.choose([IDLE] * 5, key)
        moved = balancer.choose([IDLE, IDLE, DOWN, IDLE, IDLE], key)
        assert (moved == home) == (home != 2)


def test_a_request_without_prefix_goes_to_the_least_loaded() -> None:
    balancer = make_balancer("prefix_affine", 0)
    seen = [IDLE._replace(num_running=3), IDLE._replace(num_running=2), IDLE._replace(num_running=3)]
    assert {balancer.choose(seen, b"") for _ in range(10)} == {1}


def test_a_prefix_is_its_first_tokens_and_its_salt() -> None:
    prompt = list(range(MAX_PREFIX_TOKENS))
    key = prefix_key(prompt)
    assert prefix_key([*prompt, 7]) == prefix_key([*prompt, 8, 9]) == key
    others = [
        prefix_key(prompt[:-1]),
        prefix_key([1, *prompt[1:]]),
        prefix_key(prompt, "salt"),
        prefix_key(prompt, ""),
    ]
    assert len({key, *others}) == 5
    assert prefix_key(prompt, "\ud800") != key, "a salt is whatever a client sent"


def test_another_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match="fastest is none of least_loaded, power_of_two, prefix_affine, round_robin"
    ):
        make_balancer("fastest", 0)
