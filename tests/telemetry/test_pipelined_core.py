"""What a core with several steps under way records breaks no law, and agrees with what it tells its clients."""

import pytest
from charged_core import ChargedCore, check_settled


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_law_is_broken_and_nothing_stays_open(seed: int, num_stages: int) -> None:
    core = ChargedCore(seed, num_stages=num_stages)
    core.run(150)
    check_settled(core)
    assert core.executor.most_in_flight >= num_stages  # type: ignore[attr-defined]
