"""Windows begin at the newest snapshot that is old enough, also after a long silence; snapshots are bounded."""

from dataclasses import dataclass, field

from vllm_obs.telemetry.economics_costs import AccountTotals
from vllm_obs.telemetry.economics_engine import EngineTotals
from vllm_obs.telemetry.economics_windows import MAX_SNAPSHOTS, Spending, SpendingWindows, spent_between

NS = 10**9


@dataclass
class Meter:
    """Spends a nanosecond whenever it is told to."""

    step_ns: int = 0
    windows: SpendingWindows = field(init=False)

    def __post_init__(self) -> None:
        self.windows = SpendingWindows(self.measure)

    def measure(self) -> Spending:
        return Spending({"a": AccountTotals(self.step_ns)}, {"0": EngineTotals(step_ns=self.step_ns)})

    def spend(self, seconds: float) -> None:
        self.windows.pass_time(int(seconds * NS))
        self.step_ns += 1

    def spent(self, seconds: int, now: float) -> tuple[float, int]:
        """When a window begins, in seconds, and what was spent in it."""
        begun = self.windows.since(seconds, int(now * NS))
        spent = spent_between(begun.spending, self.measure())
        return begun.at / NS, spent.accounts["a"].step_ns


def test_a_window_has_what_was_spent_since_it_began() -> None:
    meter = Meter()
    for second in range(100, 200):
        meter.spend(second + 0.5)
    assert meter.spent(60, 200) == (140.0, 60)
    assert meter.spent(60, 204) == (140.0, 60)
    assert meter.spent(10, 200) == (190.0, 10)
    assert meter.spent(300, 200) == (100.5, 100)
    assert meter.spent(0, 200) == (100.5, 100)


def test_after_a_silence_what_was_before_is_not_in_it() -> None:
    meter = Meter()
    meter.spend(100.5)
    meter.spend(103.0)
    meter.spend(1000.0)
    assert meter.spent(60, 1000) == (105.0, 1)
    meter.spend(1001.0)
    assert meter.spent(60, 1062) == (1000.0, 2)


def test_snapshots_are_bounded_and_kept_over_a_restart() -> None:
    meter = Meter()
    for second in range(1, 4000):
        meter.spend(second)
    assert len(meter.windows.state()[2]) == MAX_SNAPSHOTS
    other = Meter(meter.step_ns)
    other.windows.restore(meter.windows.state())
    assert other.windows.state() == meter.windows.state()
    assert other.spent(300, 4000) == meter.spent(300, 4000) == (3700.0, 300)
