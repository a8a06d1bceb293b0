"""What several servers do together is the best that one of them does."""

import pytest

from vllm_obs.server.phase import Phase, best_phase


@pytest.mark.parametrize(
    ("phases", "best"),
    [
        ([], Phase.RESTARTING),
        (["draining", "ready", "stalled"], Phase.READY),
        (["loading", "broken"], Phase.BROKEN),
        (["dead", "draining"], Phase.DRAINING),
        (["dead"], Phase.DEAD),
    ],
)
def test_the_best_phase_counts(phases: list[str], best: Phase) -> None:
    assert best_phase(phases) is best


def test_every_phase_has_its_place() -> None:
    assert [best_phase([phase.value]) for phase in Phase] == list(Phase)
