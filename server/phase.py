"""Phase: what a server is doing, as probes and the service manager are told."""

from collections.abc import Container
from enum import Enum


class Phase(Enum):
    """LOADING until the engine is ready; DRAINING after SIGTERM; DEAD once the engine is gone for good.

    STALLED while the engine has work and makes no progress; BROKEN while its model gives no numbers; RESTARTING
    while another takes a dead one's place.
    """

    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"
    BROKEN = "broken"
    RESTARTING = "restarting"
    DRAINING = "draining"
    DEAD = "dead"


_BEST_FIRST = (
    Phase.READY,
    Phase.STALLED,
    Phase.BROKEN,
    Phase.RESTARTING,
    Phase.LOADING,
    Phase.DRAINING,
    Phase.DEAD,
)


def best_phase(values: Container[str]) -> Phase:
    """What several servers do together: the best that one of them does; where there is none, one is started."""
    return next((phase for phase in _BEST_FIRST if phase.value in values), Phase.RESTARTING)
