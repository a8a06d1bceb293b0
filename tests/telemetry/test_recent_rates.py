"""How fast totals grew lately: over the last ten seconds, from one look to another."""

import pytest

from vllm_obs.telemetry.recent_rates import MAX_TOTALS, RecentRates

S = 1_000_000_000


def test_first_look_knows_no_rate() -> None:
    assert RecentRates().look("a", 5.0, 100 * S) is None


def test_rate_is_over_what_the_last_ten_seconds_saw() -> None:
    rates = RecentRates()
    totals = [0.0] * 10 + [float(second) for second in range(1, 12)]
    found = [rates.look("a", total, number * S) for number, total in enumerate(totals)]
    assert found[9] == 0.0
    assert found[14] == pytest.approx(0.5)
    assert found[20] == pytest.approx(1.0), "the ten seconds before it grew have passed"


def test_looks_in_a_hurry_are_one() -> None:
    rates = RecentRates()
    rates.look("a", 0.0, 0)
    assert rates.look("a", 1.0, S // 10) is None
    assert rates.look("a", 1.0, S) == pytest.approx(1.0)


def test_after_a_long_pause_it_is_over_the_pause() -> None:
    rates = RecentRates()
    rates.look("a", 0.0, 0)
    assert rates.look("a", 50.0, 100 * S) == pytest.approx(0.5)


def test_total_that_began_anew_never_shrinks_the_rate_below_nothing() -> None:
    rates = RecentRates()
    rates.look("a", 9.0, 0)
    assert rates.look("a", 0.0, S) == 0.0


def test_totals_and_looks_are_bounded() -> None:
    rates = RecentRates()
    for number in range(MAX_TOTALS + 5):
        rates.look(number, 0.0, 0)
    assert len(rates) == MAX_TOTALS
    for second in range(1000):
        rates.look("a", 0.0, second * S)
    assert len(rates._looks["a"]) <= 12
