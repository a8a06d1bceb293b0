"""Phase: what a server is doing, as probes and the service manager are told."""

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
