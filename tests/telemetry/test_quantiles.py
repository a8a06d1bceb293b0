import pytest

from vllm_obs.telemetry.quantiles import MAX_ENGINES, MAX_SLICES, MEASURES, WINDOWS, Quantiles, Summary

S = 10**9
NOTHING = Summary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_windows_hold_what_happened_in_them() -> None:
    quantiles = Quantiles()
    for second, value in ((10, 4.0), (600, 3.0), (850, 2.0), (895, 1.0)):
        quantiles.observe("ttft", "0", value, second * S)
    seen = {window: quantiles.summary(window, 900 * S)["ttft"] for window in WINDOWS}
    assert {window: summary.num_observed for window, summary in seen.items()} == {
        "10s": 1,
        "1m": 2,
        "5m": 2,
        "run": 4,
    }
    assert {window: summary.max for window, summary in seen.items()} == {"10s": 1, "1m": 2, "5m": 2, "run": 4}
    assert seen["run"].mean == 2.5


def test_engines_are_merged_or_seen_apart() -> None:
    quantiles = Quantiles()
    for engine, value in (("0", 1.0), ("0", 1.0), ("1", 9.0)):
        quantiles.observe("step", engine, value, S)
    assert quantiles.summary("run", S)["step"].num_observed == 3
    assert quantiles.summary("run", S, "1")["step"].max == 9.0
    assert quantiles.summary("run", S, "1")["step"].p50 == pytest.approx(9.0, rel=0.01)
    assert quantiles.summary("run", S, "2")["step"] == NOTHING


def test_what_is_not_over_yet_is_told_of_with_what_is() -> None:
    quantiles = Quantiles()
    quantiles.observe("queue", "0", 1.0, 10 * S)
    summary = quantiles.summary_with("queue", [30.0, 40.0], "1m", 11 * S)
    assert (summary.num_observed, summary.max) == (3, 40.0)
    assert quantiles.summary("1m", 11 * S)["queue"].num_observed == 1
    assert quantiles.summary_with("queue", [], "1m", 11 * S, "1") == NOTHING


def test_all_measures_are_told_of() -> None:
    assert Quantiles().summary("1m", S) == dict.fromkeys(MEASURES, NOTHING)
    with pytest.raises(KeyError):
        Quantiles().summary("2m", S)


def test_what_comes_late_is_counted() -> None:
    quantiles = Quantiles()
    for second in (5, 4, 6):
        quantiles.observe("itl", "0", 1.0, second * S)
    assert quantiles.summary("10s", 7 * S)["itl"].num_observed == 3


def test_slices_and_engines_have_a_bound() -> None:
    quantiles = Quantiles()
    for second in range(2 * MAX_SLICES):
        quantiles.observe("itl", "0", 1.0, second * S)
    for engine in range(2 * MAX_ENGINES):
        quantiles.observe("itl", str(engine), 1.0, S)
    tracks = quantiles._tracks
    assert len(tracks["0"]["itl"]._slices) == MAX_SLICES
    assert len(tracks) == MAX_ENGINES
    assert quantiles.summary("run", S)["itl"].num_observed == 2 * MAX_SLICES + 2 * MAX_ENGINES


def test_the_run_goes_on_from_a_state_and_windows_begin_anew() -> None:
    quantiles, resumed = Quantiles(), Quantiles()
    quantiles.observe("e2e", "0", 2.0, S)
    resumed.restore(quantiles.state())
    assert resumed.summary("run", S) == quantiles.summary("run", S)
    assert resumed.summary("1m", S)["e2e"] == NOTHING
