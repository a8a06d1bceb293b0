"""Block time is split among those who hold a block, and sums to the time that blocks were active."""

from random import Random

import pytest

from vllm_obs.telemetry.economics_blocks import BlockTime


def test_a_block_of_one_is_its_own_and_one_of_two_is_shared() -> None:
    blocks = BlockTime()
    blocks.advance(1000)
    blocks.hold("a", [1, 2])
    blocks.advance(1100)
    blocks.hold("b", [2, 3])
    blocks.advance(1200)
    assert (blocks.held_ns("a"), blocks.held_ns("b")) == (200 + 100 + 50, 50 + 100)
    assert blocks.free("a", [1, 2]) == 350
    blocks.advance(1300)
    assert blocks.held_ns("b") == 150 + 200
    assert (blocks.num_active, blocks.active_ns) == (2, 200 + 300 + 200)


def test_a_table_grows_and_what_is_given_back_within_a_step_keeps_the_rest() -> None:
    blocks = BlockTime()
    blocks.advance(10)
    blocks.hold("a", [1])
    blocks.advance(20)
    blocks.hold("a", [2, 3])
    assert blocks.free("a", [1]) == 10
    blocks.advance(30)
    assert (blocks.held_ns("a"), blocks.holders) == (20, ["a"])
    assert blocks.free("a", [2, 3]) == 20
    assert (blocks.free("a", [2, 3]), blocks.held_ns("a"), blocks.holders) == (0.0, 0.0, [])


def test_time_does_not_go_back() -> None:
    blocks = BlockTime()
    blocks.advance(100)
    blocks.hold("a", [1])
    blocks.advance(90)
    assert (blocks.at, blocks.held_ns("a")) == (100, 0.0)


def test_it_goes_on_from_a_checkpoint() -> None:
    blocks = BlockTime()
    blocks.advance(100)
    blocks.hold("a", [1, 2])
    blocks.hold("b", [2])
    blocks.advance(200)
    other = BlockTime()
    other.restore(blocks.state())
    assert other.state() == blocks.state()
    for each in (blocks, other):
        each.advance(300)
        each.free("b", [2])
        each.advance(400)
    assert other.held_ns("a") == blocks.held_ns("a") == 100 + 50 + 100 + 50 + 200
    assert other.active_ns == blocks.active_ns == 600


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_over_holders_is_the_integral_of_active_blocks(seed: int) -> None:
    """Any number of holders, coming and going in any order."""
    random = Random(seed)
    blocks, now, given_back, integral = BlockTime(), 1, 0.0, 0
    tables: dict[str, list[int]] = {}
    for number in range(2000):
        num_active = len({block for table in tables.values() for block in table})
        num_ns = random.randint(0, 10**6)
        now, integral = now + num_ns, integral + num_active * num_ns
        blocks.advance(now)
        if tables and random.random() < 0.45:
            name = random.choice(list(tables))
            given_back += blocks.free(name, tables.pop(name))
        else:
            table = random.sample(range(50), random.randint(1, 12))
            blocks.hold(f"r-{number}", table)
            tables[f"r-{number}"] = table
    total = given_back + sum(blocks.held_ns(name) for name in tables)
    assert blocks.active_ns == integral
    assert total == pytest.approx(integral, rel=1e-9)
