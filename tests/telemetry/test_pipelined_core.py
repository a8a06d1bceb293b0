"""What a core with several steps under way records breaks no law, and agrees with what it tells its clients."""

import pytest
from charged_core import ChargedCore


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_law_is_broken_and_nothing_stays_open(seed: int, num_stages: int) -> None:
    core = ChargedCore(seed, num_stages=num_stages)
    core.run(150)
    broken = {law: count for law, count in core.state.invariants.counts().items() if count}
    assert broken == {}, core.state.invariants.breaches()
    engine = core.state.engines["0"]
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    core.state.tick(core.now + 10**11)
    assert [step for step, facts in engine.open_steps.items() if not facts.is_over] == []
    assert core.executor.most_in_flight >= num_stages  # type: ignore[attr-defined]
