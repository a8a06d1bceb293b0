"""A minute of one engine in figures, for tests of what a verdict makes of them."""

from collections import Counter
from typing import Any

from vllm_obs.telemetry.ddsketch import DDSketch
from vllm_obs.telemetry.records import EngineDescribed
from vllm_obs.telemetry.verdict_tally import CONDITIONS, during
from vllm_obs.telemetry.verdict_window import WindowFacts

S = 10**9
DESCRIBED = EngineDescribed(
    0, 1, ["m"], "float32", "cpu", 8192, 32, 512, 500, 16, "float32", 64 << 20, 0.9, True, 500, 2, 1000, 1, 10, 1
)


def minute(described: EngineDescribed | None = DESCRIBED, **sums: float) -> WindowFacts:
    """1000 steps in 60 s, all of it steps, with 10 that run on 300 blocks and 5 that wait, 100 tokens a step.

    Sums that end in `_ns` are given in seconds. While a condition holds it is as it always is.
    """
    mean = {"waiting_ns": 5 * 60, "running_ns": 10 * 60, "active_ns": 300 * 60}
    given = {"steps": 1000, "ns": 60, "used_ns": 60, "tokens": 100_000, **mean, **sums}
    counted = {name: number * S if name.endswith("_ns") else number for name, number in given.items()}
    for condition in CONDITIONS:
        for figure in ("waiting_ns", "running_ns", "active_ns", "tokens", "steps"):
            held = counted.get(condition, 0) / counted["used_ns"]
            counted.setdefault(during(figure, condition), counted[figure] * held)
    return WindowFacts("0", described, 60.0, Counter(counted), num_running=10)  # type: ignore[arg-type]


def limits(**seconds: float) -> dict[str, float]:
    """Sums of step time (ns) by limit, given in seconds."""
    return {f"limit/{limit}": number * S for limit, number in seconds.items()}


def ratios(*numbers: float) -> DDSketch:
    """Observed over floor of so many steps."""
    sketch = DDSketch()
    for number in numbers:
        sketch.observe(number)
    return sketch


def only(found: Any) -> Any:
    """The one finding there is."""
    assert found is not None
    return found
