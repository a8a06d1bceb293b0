"""Whether a stall that an earlier Observer found is still the same one."""

from collections.abc import Iterable

from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.watchdog_rule import ProcessLook


def still_lasts(stall: StallBegun, looks: Iterable[ProcessLook]) -> bool:
    """Whether the process at fault is where it was: in the same step, or for who has an event loop not gone round.

    One that has moved on within its step is taken to be where it was; the next look shows that it moves.
    """
    look = next((look for look in looks if (look.role, look.pid) == (stall.role, stall.pid)), None)
    if look is None:
        return False
    return look.step == stall.step if stall.engine else look.heartbeat_at <= stall.noticed_at
